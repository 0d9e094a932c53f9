# Two commands matter: `make demo` and `make test`. The work is done by the scripts in tests/tools.

# Scripts must see Ctrl-C as it comes, and each target is one script: nothing is run in parallel.
.NOTPARALLEL:
.PHONY: help demo test test-minio test-versions bench-copy bench-read bench-parts build lint fuzz stress deny clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo        tier 200 MB from a real Kafka broker to S3 and read everything back, with proof'
	@echo '                 STORE=embedded (default), file, versitygw, minio; or an S3 of yours: S3_ENDPOINT=URL'
	@echo '                 S3_BUCKET=.. S3_ACCESS_KEY=.. S3_SECRET_KEY=.. [S3_REGION=..] [S3_CA_FILE=..]; KEEP=1 keeps the files'
	@echo 'make test        every check: lint, unit, conformance, JNI, layering, a real broker end to end'
	@echo 'make test-minio  the S3 suites, JUnit, the broker test and the demo on a real MinIO'
	@echo 'make test-versions  the broker test on each Kafka version, to docs/COMPATIBILITY.md'
	@echo 'make bench-copy  what a copy costs beside the raw limit, on a real MinIO (docs/BENCHMARKS.md)'
	@echo 'make bench-read  what reads cost as a broker makes them, beside the raw limit, on a real MinIO (tests/bench/README.md)'
	@echo 'make bench-parts what chunks, manifests and cached reads cost by themselves'
	@echo 'make build       the native library, the plugin jar (build/plugin) and the tools'
	@echo 'make lint        formatting, clippy and the layering check only'
	@echo 'make fuzz        fuzzes what reads foreign bytes, SECONDS=600 (default) in all'
	@echo 'make stress      24 readers, deletes and faults over 4 GiB of segments for SECONDS=180 (default)'
	@echo 'make deny        licences, advisories, banned and duplicate crates (needs cargo-deny: cargo install cargo-deny)'
	@echo 'make clean       remove everything built (what was downloaded stays in the cache)'

demo:
	@tests/tools/build
	@tests/tools/harness Demo

test:
	@tests/tools/run-suites test

test-minio:
	@tests/tools/run-suites minio

test-versions:
	@tests/tools/compatibility

bench-copy:
	@tests/tools/with-s3 minio cargo bench --workspace --bench copy

bench-read:
	@tests/tools/bench-read

bench-parts:
	@cargo bench --workspace --bench format --bench cache

build:
	@tests/tools/build

lint:
	@tests/tools/run-suites lint

stress:
	@ALLUVIUM_STRESS_SECONDS=$(or $(SECONDS),180) ALLUVIUM_STRESS_SEGMENT_MIB=256 cargo test --release --workspace --test read_stress -- --nocapture

fuzz:
	@tests/tools/fuzz $(or $(SECONDS),600)

deny:
	@cargo deny --workspace check

clean:
	@rm -rf target build .gradle
