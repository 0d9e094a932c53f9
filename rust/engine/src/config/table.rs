//! The one table of settings.

use std::fmt::Write;

/// What a value is, with its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueType {
    /// Any text.
    Text,
    /// A text that is never printed.
    Secret,
    /// A path.
    Path,
    /// `true` or `false`.
    Flag,
    /// A whole number in an inclusive range.
    Number {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// Who reads a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This crate.
    Engine,
    /// The Java class, before the native library is there.
    Shim,
    /// Nobody: Kafka adds it.
    Kafka,
}

/// A setting, without the `rsm.config.` that Kafka strips.
#[derive(Clone, Copy, Debug)]
pub struct KeyDefinition {
    /// Lower-case words and dots: container images map environment variables to such names only. One name stands for a family: its
    /// `<id>` is any word.
    pub name: &'static str,
    /// Names that mean the same; those of Aiven's plugin.
    pub aliases: &'static [&'static str],
    /// Type and range.
    pub value_type: ValueType,
    /// Value when unset; `None`: unset means something of its own, told in `doc`.
    pub default: Option<&'static str>,
    /// One or two sentences for the operator.
    pub doc: &'static str,
    /// Who reads it.
    pub owner: Owner,
}

/// Longest word there: it is kept with every segment.
const ID_BYTES_MAX: usize = 64;

/// The part of a name that the operator chooses.
const ID: &str = "<id>";

impl KeyDefinition {
    /// Whether `name` is this key's, an alias of it, or one of the family it stands for.
    pub(super) fn matches(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name) || self.id_in(name).is_some()
    }

    /// The word at the place of `<id>`: letters, digits, `.`, `_` and `-`.
    pub(super) fn id_in<'name>(&self, name: &'name str) -> Option<&'name str> {
        let (before, after) = self.name.split_once(ID)?;
        let id = name.strip_prefix(before)?.strip_suffix(after)?;
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        ((1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(valid)).then_some(id)
    }
}

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// A day: a longer deadline is no deadline.
const TIMEOUT_MS_MAX: u64 = 24 * 3600 * 1000;

const TIMEOUT_MS: ValueType = ValueType::Number {
    min: 100,
    max: TIMEOUT_MS_MAX,
};

const fn key(
    name: &'static str,
    value_type: ValueType,
    default: Option<&'static str>,
    doc: &'static str,
) -> KeyDefinition {
    KeyDefinition {
        name,
        aliases: &[],
        value_type,
        default,
        doc,
        owner: Owner::Engine,
    }
}

const fn alias(aliases: &'static [&'static str], definition: KeyDefinition) -> KeyDefinition {
    KeyDefinition { aliases, ..definition }
}

const fn owned(owner: Owner, definition: KeyDefinition) -> KeyDefinition {
    KeyDefinition { owner, ..definition }
}

/// All settings, in the order of the documentation.
#[rustfmt::skip] // a row each
pub static KEYS: &[KeyDefinition] = &[
    key("storage.type", ValueType::Choice(&["s3", "file"]), Some("s3"), "Where segments go: an S3 store, or a directory such as an NFS mount."),
    alias(&["storage.root"], key("file.path", ValueType::Path, None, "Root directory of storage.type=file. It must exist and be writable. Required then.")),
    key("key.prefix", ValueType::Text, Some(""), "Put before every object key as it is; end it with / to get a folder. At most 96 bytes of UTF-8. Without a / at its end it adds to the path component of the topic, which stores limit to 255 bytes. It can be changed at any time: a segment is found under the prefix it was written with."),
    alias(&["chunk.size"], key("chunk.size.bytes", ValueType::Number { min: 64 * KIB, max: 64 * MIB }, Some("1048576"), "Bytes of a segment that are checksummed, fetched and cached as one. A power of two. Applies to new segments.")),
    key("compression.type", ValueType::Choice(&["none", "zstd", "auto"]), Some("none"), "Compression of the chunks of new segments. none: the object is Kafka's .log byte for byte. zstd: a frame a chunk; zstd -d OBJECT -o FILE restores the .log. auto: zstd for the segments of which a sample, taken from all over each of them, gets at least an eighth smaller; those that producers compressed seldom do."),
    key("compression.level", ValueType::Number { min: 1, max: 9 }, Some("1"), "zstd level. Level 9 costs twelve times the CPU time of level 1 and gains little on most data."),
    key("upload.threads", ValueType::Number { min: 1, max: 64 }, None, "Threads that compress and encrypt, over all copies. Unset: half of the machine's processors, at least 1 and at most 8."),
    key("encryption.enabled", ValueType::Flag, Some("false"), "Encrypt new segments (AES-256-GCM, a key of its own for each segment, wrapped by the key pair encryption.key.pair.id). Segments that are encrypted already can be read as long as their key pair is configured."),
    key("encryption.key.pair.id", ValueType::Text, None, "Which key pair new segments are encrypted with. Rotation: add a pair, name it here, keep the old one for as long as segments of it exist. Required for encryption.enabled=true."),
    key("encryption.key.pairs", ValueType::Text, None, "The ids of all key pairs, separated by commas. May be left out; when set, each must have its files and no other may."),
    key("encryption.key.pairs.<id>.private.key.file", ValueType::Path, None, "PEM file of an RSA private key of at least 2048 bits (PKCS#8 or PKCS#1). Read at the start."),
    key("encryption.key.pairs.<id>.public.key.file", ValueType::Path, None, "PEM file of the public key. May be left out, since the private key holds it; when set, it must belong to the private key."),
    alias(&["storage.s3.bucket.name"], key("s3.bucket", ValueType::Text, None, "Bucket. Required for storage.type=s3; it is never created.")),
    alias(&["storage.s3.region"], key("s3.region", ValueType::Text, Some("us-east-1"), "Region that requests are signed for. Most S3 stores outside AWS take us-east-1.")),
    alias(&["storage.s3.endpoint.url"], key("s3.endpoint", ValueType::Text, None, "http://host:port or https://host:port of a store that is not AWS. Unset: AWS in s3.region.")),
    alias(&["storage.s3.path.style.access.enabled"], key("s3.path.style.enabled", ValueType::Flag, None, "Address the bucket in the path (true) or in the host name (false). Unset: true when s3.endpoint is set.")),
    key("s3.credentials.provider", ValueType::Choice(&["auto", "static", "file", "environment", "profile", "metadata"]), Some("auto"), "Where credentials come from. auto: s3.access.key.id, s3.credentials.file or s3.profile, whichever is set, else the environment, else the default profile. Cloud metadata (web identity, container, instance) is asked only with metadata."),
    alias(&["storage.aws.access.key.id"], key("s3.access.key.id", ValueType::Text, None, "Access key id.")),
    alias(&["storage.aws.secret.access.key"], key("s3.secret.access.key", ValueType::Secret, None, "Secret access key.")),
    alias(&["storage.aws.session.token"], key("s3.session.token", ValueType::Secret, None, "Session token of temporary credentials.")),
    alias(&["storage.aws.credentials.file"], key("s3.credentials.file", ValueType::Path, None, "Key file with the lines aws_access_key_id = … and aws_secret_access_key = …; read again when it changes.")),
    key("s3.profile", ValueType::Text, None, "Profile of the shared AWS files."),
    key("s3.profile.file", ValueType::Path, None, "Credentials file that holds the profile. Unset: the usual place."),
    key("s3.ca.file", ValueType::Path, None, "PEM bundle of the certificate authorities to trust. Unset: the system's."),
    key("s3.payload.signing.enabled", ValueType::Flag, Some("false"), "Sign the SHA-256 of every payload. A CRC-32 protects payloads in both cases; signing costs about 0.5 CPU seconds per GiB and is for stores that refuse unsigned payloads."),
    key("s3.sse.type", ValueType::Choice(&["none", "sse-s3", "sse-kms"]), Some("none"), "Encryption by the store that each upload asks for. none: nothing is asked for, and the bucket's own default applies."),
    key("s3.sse.kms.key.id", ValueType::Text, None, "Key of s3.sse.type=sse-kms. Unset: the store's default key."),
    alias(&["storage.s3.storage.class"], key("s3.storage.class", ValueType::Text, None, "Storage class of new objects, such as STANDARD_IA. Archive classes are refused: their objects cannot be read without being restored. Unset: the bucket's default.")),
    key("s3.object.tags", ValueType::Text, None, "Tags of new objects: name=value, separated by commas; at most 10."),
    alias(&["storage.s3.multipart.upload.part.size"], key("upload.part.size.bytes", ValueType::Number { min: 5 * MIB, max: GIB }, Some("16777216"), "Bytes of an upload part; a multiple of chunk.size.bytes. Smaller segments go up in one request.")),
    key("upload.concurrency", ValueType::Number { min: 1, max: 64 }, Some("8"), "Parts of one segment that are uploaded at the same time, as far as memory allows."),
    key("upload.rate.limit.bytes.per.second", ValueType::Number { min: 128 * KIB, max: 1024 * GIB }, None, "Most bytes per second, as they are stored, that all uploads of this broker send together; shaped evenly, also within a request. Unset: no limit."),
    key("memory.budget.bytes", ValueType::Number { min: 16 * MIB, max: 1024 * GIB }, Some("268435456"), "Native memory of the plugin: upload buffers, loads and cache together. It comes on top of the JVM's heap. The least that works depends on chunk.size.bytes and upload.part.size.bytes, and is 64 MiB with their defaults (72 MiB and a little with compression or encryption); a start with less names it."),
    alias(&["fetch.chunk.cache.size"], key("cache.memory.bytes", ValueType::Number { min: 0, max: 1024 * GIB }, None, "Part of memory.budget.bytes for the chunk cache. Unset: three eighths of it. Of the rest, four fifths are for uploads and one fifth for loads. 0: nothing is kept or loaded ahead, and each stream of Kafka's, about one for every mebibyte, fetches its manifest and its chunks again.")),
    alias(&["fetch.chunk.cache.path"], key("cache.path", ValueType::Path, None, "Directory of the disk tier of the cache, on a local disk; for this broker only. Its parent must exist, and it must be empty, absent, or one that the plugin has used before: other directories are left alone. A disk that cannot be written stops the start; when it fails later, fetches go on without it. The cache survives restarts, and holds chunks as they are in the bucket: encrypted ones are encrypted on disk. Unset: no disk tier.")),
    key("cache.size.bytes", ValueType::Number { min: 64 * MIB, max: 1024 * 1024 * GIB }, Some("10737418240"), "Most bytes of disk that the files in cache.path take. At least sixteen chunks of chunk.size.bytes. When lowered, the least recently used files go at the next start."),
    key("connect.timeout.ms", TIMEOUT_MS, Some("3000"), "Limit of making a connection, TLS included."),
    alias(&["storage.s3.api.call.attempt.timeout"], key("request.attempt.timeout.ms", TIMEOUT_MS, Some("15000"), "Limit of one attempt of a request, without the time that its bytes take, and of silence within a body.")),
    alias(&["storage.s3.api.call.timeout"], key("request.timeout.ms", TIMEOUT_MS, Some("60000"), "Limit of a request with all its attempts, without the time that its bytes take.")),
    key("copy.timeout.ms", TIMEOUT_MS, Some("1800000"), "Limit of the copy of one segment; with upload.rate.limit.bytes.per.second, the time that ten such segments take at that rate is added. What was uploaded is removed when it passes."),
    key("fetch.timeout.ms", TIMEOUT_MS, Some("30000"), "Limit of opening a stream and of waiting for each chunk of it. A chunk whose bytes are still coming by then goes on loading, and a later fetch finds it."),
    key("fetch.hedging.enabled", ValueType::Flag, Some("true"), "storage.type=s3: send a second GET for one that is slower than 95 % of the recent ones, and take the first answer; and ask anew for the rest of a body that has come to a halt for two seconds. At most one in 20 GETs, each MiB of a larger one counted as one; none while the store is away, asks for fewer requests, or all reads that it may be asked at a time are under way."),
    key("delete.timeout.ms", TIMEOUT_MS, Some("10000"), "Limit of the delete of one segment. Kafka deletes a topic's segments one after the other on a thread that it needs for other things."),
    key("close.timeout.ms", TIMEOUT_MS, Some("10000"), "Limit of closing: operations under way are cancelled and clean up within it."),
    key("startup.probe", ValueType::Choice(&["write", "read", "off"]), Some("write"), "How the store is tried at start, so that a wrong setting stops the broker at once. write: a small object under key.prefix is written, read and deleted. read: only a read is tried. off: the broker starts even when the store is down."),
    key("log.level", ValueType::Choice(&["error", "warn", "info", "debug", "trace"]), Some("info"), "Finest level that native code hands to the broker's log, which has its own levels besides (logger io.alluvium)."),
    owned(Owner::Shim, key("native.library.path", ValueType::Path, None, "The native library itself, loaded in place: replace the file by renaming another over it, never by writing into it. Unset: the one beside the jar (native/PLATFORM/), else the one in the jar.")),
    owned(Owner::Shim, key("native.extract.path", ValueType::Path, None, "Directory that the library in the jar is copied to and loaded from; must allow execution. Unset: java.io.tmpdir.")),
    owned(Owner::Kafka, key("broker.id", ValueType::Text, None, "Added by Kafka.")),
    owned(Owner::Kafka, key("node.id", ValueType::Text, None, "Added by Kafka 4.4 and later.")),
];

/// `docs/CONFIGURATION.md`.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Configuration\n\nEach key goes into the broker's configuration with `rsm.config.` before it; blanks around a value do not count. This page is generated from the table in \
         `rust/engine/src/config/table.rs` by `alluvium config`.\n\n| Key | Default | Values | Meaning |\n|---|---|---|---|\n",
    );
    for key in KEYS.iter().filter(|key| key.owner != Owner::Kafka) {
        let values = match key.value_type {
            ValueType::Text => "text".to_owned(),
            ValueType::Secret => "text, never printed".to_owned(),
            ValueType::Path => "path".to_owned(),
            ValueType::Flag => "true, false".to_owned(),
            ValueType::Number { min, max } => format!("{min} to {max}"),
            ValueType::Choice(words) => words.join(", "),
        };
        let default = match key.default {
            None => "unset".to_owned(),
            Some("") => "empty".to_owned(),
            Some(value) => format!("`{value}`"),
        };
        let mut doc = key.doc.replace('|', "\\|");
        if !key.aliases.is_empty() {
            doc.push_str(&format!(" Also accepted as `{}`.", key.aliases.join("`, `")));
        }
        writeln!(page, "| `{}` | {default} | {values} | {doc} |", key.name).expect("a String takes everything");
    }
    page.push_str(KEY_PAIRS);
    page
}

const KEY_PAIRS: &str = "
## Key pairs for `encryption.*`

A pair is an RSA key in a PEM file without a passphrase, readable by the broker only; its id has 1 to 64 letters, digits, `.`, `_` and `-`:

    openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:3072 -out k2026.private.pem

    rsm.config.encryption.enabled=true
    rsm.config.encryption.key.pair.id=k2026
    rsm.config.encryption.key.pairs.k2026.private.key.file=/etc/kafka/k2026.private.pem

All brokers need the same pairs. To rotate, first add the new pair to every broker, then name it in `encryption.key.pair.id`; the old one stays configured for as long as segments of it exist (`alluvium show` tells
a segment's). A lost private key cannot be replaced: the segments of its pair cannot be read any more, only deleted.
";
