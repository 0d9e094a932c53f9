//! Random sequences of copies, fetches, deletes, network cuts and faults, against a plain model of what Kafka may expect.
//!
//! `ALLUVIUM_SEED` runs one seed, `ALLUVIUM_SEEDS` so many of them instead of a few. A failed test prints its seed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::{
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::Duration,
};

use alluvium_engine::ErrorKind;
use alluvium_testkit::broker::soon;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use world::{Fate, World};

/// Seeds of a run of `make test`.
const SEEDS: u64 = 4;

/// Steps of a sequence.
const STEPS: u32 = 60;

/// Copies of the long run, and how many are under way at a time: Kafka's default.
const COPIES: usize = 1000;
const COPIERS: usize = 10;

/// How likely a request is hit, for so many copies each.
const WEATHER: [f64; 5] = [0.05, 0.3, 0.1, 0.7, 0.2];
const WEATHER_LASTS: usize = 50;

fn for_each_seed(test: impl Fn(u64)) {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds: Vec<u64> = match number("ALLUVIUM_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("ALLUVIUM_SEEDS").unwrap_or(SEEDS)).collect(),
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            eprintln!("failed with ALLUVIUM_SEED={seed}");
            resume_unwind(panic);
        }
    }
}

#[test]
fn random_sequences_leave_what_the_model_says() {
    for_each_seed(|seed| {
        let mut random = StdRng::seed_from_u64(seed);
        let mut world = World::new(seed);
        world.chaos(seed, 0.15);
        for _ in 0..STEPS {
            step(&mut world, &mut random);
        }
        world.chaos_off();
        world.assert_as_the_model_says();
    });
}

fn step(world: &mut World, random: &mut StdRng) {
    match random.random_range(0..100) {
        0..30 => {
            let segment = world.new_segment(random);
            world.begin_copy(segment);
            if random.random_bool(0.2) {
                world.cancel_soon(segment, Duration::from_millis(random.random_range(0..60)));
            }
        }
        30..55 => {
            if let Some(segment) = world.any_finished(random) {
                world.fetch(segment, random);
            }
        }
        55..65 => {
            if let Some(segment) = world.any_finished(random) {
                world.fetch_index(segment);
            }
        }
        65..80 => {
            if let Some(segment) = world.any_finished(random) {
                world.delete(segment);
            }
        }
        80..90 => world.wait_for_copies(),
        90..93 => world.crash(),
        93..96 => {
            // The store is away for a moment; what is under way survives or fails cleanly.
            world.cut_off(Duration::from_millis(random.random_range(0..1500)));
        }
        _ => world.chaos(
            random.random_range(0..u64::MAX),
            *[0.0, 0.05, 0.3].choose(random).unwrap(),
        ),
    }
}

/// After a bad day of the store there is what was copied, whole, and nothing else: no object, no upload, no file, no reserved byte.
#[test]
fn a_thousand_copies_under_faults_leave_exactly_those_that_succeeded() {
    // Least memory, compressed and encrypted.
    let seed = env::var("ALLUVIUM_SEED").map_or(3, |text| text.parse().unwrap());
    eprintln!("ALLUVIUM_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut world = World::new(seed);
    let files_before = open_files();
    let mut begun = 0;
    let mut faults = 0;
    while begun < COPIES {
        if begun % WEATHER_LASTS == 0 {
            faults += world.faults_of_this_weather();
            world.chaos(
                random.random_range(0..u64::MAX),
                WEATHER[begun / WEATHER_LASTS % WEATHER.len()],
            );
        }
        while world.copies_running() < COPIERS {
            let segment = world.new_segment(&mut random);
            world.begin_copy(segment);
            if random.random_bool(0.05) {
                world.cancel_soon(segment, Duration::from_millis(random.random_range(0..30)));
            }
            begun += 1;
            if begun % WEATHER_LASTS == 0 {
                break;
            }
        }
        world.wait_for_a_copy();
    }
    world.wait_for_copies();
    faults += world.faults_of_this_weather();
    world.chaos_off();
    world.assert_as_the_model_says();
    let (stored, failed) = (world.count(Fate::Stored), world.count(Fate::Absent));
    eprintln!(
        "{stored} stored, {failed} failed, {faults} faults; failures: {:?}",
        world.failures()
    );
    assert_eq!(stored + failed, COPIES);
    assert!(faults > COPIES as u64, "only {faults} faults happened");
    assert!(
        stored > COPIES / 2 && failed > COPIES / 50,
        "{stored} stored, {failed} failed"
    );
    let internal = world.failures().get(&ErrorKind::Internal).copied().unwrap_or(0);
    assert_eq!(internal, 0, "{:?}", world.last_error(ErrorKind::Internal));
    world.close();
    // Connections of the client that ended on the server's side are let go by then.
    assert!(
        soon(|| open_files() <= files_before),
        "{} files are open, {files_before} were before",
        open_files()
    );
}

/// Files that this process has open.
fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
