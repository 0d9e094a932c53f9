//! The native methods of `io.alluvium.kafka.Native`, which documents them.
//!
//! # Invariants
//! * Every method is thin: arguments, one call of the engine, a number.
//! * Only [`open`] and [`close`] wait longer than they are told to; the engine bounds them.
//! * Bytes go from the chunk they are in straight into Java's array.

use std::sync::Arc;

use alluvium_engine::{CopyRequest, Engine, Error, ErrorKind, Outcome, Read, Task, VERSION, metrics};
use jni::{
    Env, EnvUnowned, NativeMethod, native_method,
    objects::{JByteArray, JClass, JLongArray, JObjectArray, JString},
    sys::{jint, jlong},
};

use crate::{
    args,
    errors::{self, Result, Throw, invalid},
    handles::{ENGINES, Owned, READERS, TASKS},
    log_queue,
};

/// Must equal `Native.ABI`.
const ABI: jint = 1;
const TASK_PENDING: jint = -1;
const READ_END: jint = -1;
const READ_PENDING: jint = -2;
/// The setting that this crate reads beside the engine: logging begins before the engine does.
const LOG_LEVEL_KEY: &str = "log.level";

const METHODS: &[NativeMethod<'static>] = &[
    native_method! { static fn open(settings: JString[]) -> jlong, error_policy = Throw },
    native_method! {
        static fn start_copy(engine: jlong, segment: jbyte[], paths: JString[], leader_epochs: jbyte[]) -> jlong,
        error_policy = Throw,
    },
    native_method! {
        static fn start_open_segment(engine: jlong, segment: jbyte[], start: jlong, end_inclusive: jlong) -> jlong,
        error_policy = Throw,
    },
    native_method! {
        static fn start_open_index(engine: jlong, segment: jbyte[], index_type: jint) -> jlong,
        error_policy = Throw,
    },
    native_method! { static fn start_delete(engine: jlong, segment: jbyte[]) -> jlong, error_policy = Throw },
    native_method! {
        name = "await",
        static fn await_task(task: jlong, result: jbyte[], slice_ms: jint) -> jint,
        error_policy = Throw,
    },
    native_method! { static fn cancel(task: jlong), error_policy = Throw },
    native_method! {
        static fn read(reader: jlong, target: jbyte[], offset: jint, length: jint, slice_ms: jint) -> jint,
        error_policy = Throw,
    },
    native_method! { static fn close_reader(reader: jlong), error_policy = Throw },
    native_method! { static fn close(engine: jlong), error_policy = Throw },
    native_method! { name = "metrics", static fn read_metrics(engine: jlong, values: jlong[]), error_policy = Throw },
    native_method! { static fn describe_metrics() -> JString[], error_policy = Throw },
    native_method! { static fn poll_logs(max: jint, wait_ms: jint) -> JString[], error_policy = Throw },
];

/// `Native.init`: the one symbol that the JVM finds by its name.
#[expect(unsafe_code, reason = "the JVM finds this native by its name")]
#[unsafe(no_mangle)]
extern "system" fn Java_io_alluvium_kafka_Native_init<'local>(
    mut env: EnvUnowned<'local>,
    class: JClass<'local>,
    abi: jint,
    exception: JClass<'local>,
) -> JString<'local> {
    env.with_env(|env| init(env, &class, abi, &exception))
        .resolve::<Throw>()
}

fn init<'local>(
    env: &mut Env<'local>,
    class: &JClass<'_>,
    abi: jint,
    exception: &JClass<'_>,
) -> Result<JString<'local>> {
    log_queue::install();
    errors::set_exception_class(env, exception)?;
    if abi != ABI {
        let message = format!(
            "the jar and its native library ({VERSION}) do not belong together (boundary {abi} and {ABI}): install the \
             jar and the library of one version, or remove native.library.path to use the library inside the jar"
        );
        return Err(Error::new(ErrorKind::Config, message).into());
    }
    #[expect(unsafe_code, reason = "registering natives trusts their signatures")]
    // SAFETY: `native_method!` checks each signature against its function, all are static, and the functions live as long
    // as the library, which is linked never to be unloaded.
    unsafe {
        env.register_native_methods(class, METHODS)?;
    }
    Ok(env.new_string(format!("{VERSION} ({})", env!("ALLUVIUM_TARGET")))?)
}

fn open<'local>(
    env: &mut Env<'local>,
    _class: JClass<'local>,
    settings: JObjectArray<'local, JString<'local>>,
) -> Result<jlong> {
    let settings = args::settings(env, &settings)?;
    if let Some((_, level)) = settings.iter().find(|(key, _)| key == LOG_LEVEL_KEY) {
        log_queue::set_level(level);
    }
    Ok(ENGINES.insert(Engine::open(settings)?))
}

fn start_copy<'local>(
    env: &mut Env<'local>,
    _class: JClass<'local>,
    engine: jlong,
    segment: JByteArray<'local>,
    paths: JObjectArray<'local, JString<'local>>,
    leader_epochs: JByteArray<'local>,
) -> Result<jlong> {
    let segment = args::segment(env, &segment)?;
    let files = args::files(env, &paths, &leader_epochs)?;
    #[cfg(feature = "test-hooks")]
    let files = alluvium_engine::SegmentFiles {
        leader_epochs: crate::hooks::in_task(files.leader_epochs),
        ..files
    };
    start(engine, |opened| opened.start_copy(CopyRequest { segment, files }))
}

fn start_open_segment<'local>(
    env: &mut Env<'local>,
    _class: JClass<'local>,
    engine: jlong,
    segment: JByteArray<'local>,
    start_position: jlong,
    end_inclusive: jlong,
) -> Result<jlong> {
    let segment = args::segment(env, &segment)?;
    let range = args::range(start_position, end_inclusive)?;
    start(engine, |opened| opened.start_open_segment(segment, range))
}

fn start_open_index<'local>(
    env: &mut Env<'local>,
    _class: JClass<'local>,
    engine: jlong,
    segment: JByteArray<'local>,
    index_type: jint,
) -> Result<jlong> {
    let segment = args::segment(env, &segment)?;
    let index_type = args::index_type(index_type)?;
    start(engine, |opened| opened.start_open_index(segment, index_type))
}

fn start_delete<'local>(
    env: &mut Env<'local>,
    _class: JClass<'local>,
    engine: jlong,
    segment: JByteArray<'local>,
) -> Result<jlong> {
    let segment = args::segment(env, &segment)?;
    start(engine, |opened| opened.start_delete(segment))
}

fn start(engine: jlong, begin: impl FnOnce(&Arc<Engine>) -> Task) -> Result<jlong> {
    #[cfg(feature = "test-hooks")]
    crate::hooks::in_call();
    let opened = ENGINES.get(engine)?;
    Ok(TASKS.insert(Owned {
        engine,
        object: begin(&opened),
    }))
}

fn await_task<'local>(
    env: &mut Env<'local>,
    _class: JClass<'local>,
    task: jlong,
    result: JByteArray<'local>,
    slice_ms: jint,
) -> Result<jint> {
    let held = TASKS.get(task)?;
    let Some(outcome) = held.object.wait(args::wait(slice_ms)) else {
        return Ok(TASK_PENDING);
    };
    // A close may have taken it out already; its result is told all the same.
    drop(TASKS.remove(task));
    match outcome? {
        Outcome::Copied(custom_metadata) => give(env, &result, &custom_metadata),
        Outcome::Opened(object) => {
            let reader = READERS.insert(Owned {
                engine: held.engine,
                object,
            });
            give(env, &result, &reader.to_be_bytes()).inspect_err(|_| drop(READERS.remove(reader)))
        }
        Outcome::Deleted => Ok(0),
    }
}

fn give(env: &Env<'_>, result: &JByteArray<'_>, bytes: &[u8]) -> Result<jint> {
    put(env, result, 0, bytes)?;
    length(bytes)
}

fn cancel<'local>(_env: &mut Env<'local>, _class: JClass<'local>, task: jlong) -> Result<()> {
    // A task that has ended needs no cancelling.
    if let Ok(running) = TASKS.get(task) {
        running.object.cancel();
    }
    Ok(())
}

fn read<'local>(
    env: &mut Env<'local>,
    _class: JClass<'local>,
    reader: jlong,
    target: JByteArray<'local>,
    offset: jint,
    wanted: jint,
    slice_ms: jint,
) -> Result<jint> {
    #[cfg(feature = "test-hooks")]
    crate::hooks::in_call();
    let max = args::part(env, &target, offset, wanted)?;
    match READERS.get(reader)?.object.read(max, args::wait(slice_ms))? {
        Read::Data(bytes) => {
            // More than was asked for would overwrite what is not ours to write.
            if bytes.len() > max {
                return Err(invalid(format!("{} bytes for {max}", bytes.len())));
            }
            put(env, &target, offset, &bytes)?;
            length(&bytes)
        }
        Read::End => Ok(READ_END),
        Read::Pending => Ok(READ_PENDING),
    }
}

/// Copies into Java's array; the JVM checks the bounds.
fn put(env: &Env<'_>, target: &JByteArray<'_>, offset: jint, bytes: &[u8]) -> Result<()> {
    #[expect(unsafe_code, reason = "Java's bytes are signed")]
    // SAFETY: i8 has the size and alignment of u8 and no invalid value; the slice lives as long as `bytes`.
    let signed = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<i8>(), bytes.len()) };
    Ok(target.set_region(env, offset, signed)?)
}

fn length(bytes: &[u8]) -> Result<jint> {
    jint::try_from(bytes.len()).map_err(|_| invalid(format!("{} bytes", bytes.len())))
}

fn close_reader<'local>(_env: &mut Env<'local>, _class: JClass<'local>, reader: jlong) -> Result<()> {
    if let Some(closing) = READERS.remove(reader) {
        closing.object.close();
    }
    Ok(())
}

fn close<'local>(_env: &mut Env<'local>, _class: JClass<'local>, engine: jlong) -> Result<()> {
    let Some(closing) = ENGINES.remove(engine) else {
        return Ok(());
    };
    closing.close();
    // Its tasks have ended and its streams are closed: what is left are entries that nobody came back for.
    TASKS.remove_all_of(engine);
    READERS.remove_all_of(engine);
    Ok(())
}

fn read_metrics<'local>(
    env: &mut Env<'local>,
    _class: JClass<'local>,
    engine: jlong,
    values: JLongArray<'local>,
) -> Result<()> {
    let snapshot = ENGINES.get(engine)?.metrics();
    if values.len(env)? != snapshot.len() {
        return Err(invalid(format!(
            "room for {} metrics, there are {}",
            values.len(env)?,
            snapshot.len()
        )));
    }
    Ok(values.set_region(env, 0, &snapshot)?)
}

fn describe_metrics<'local>(
    env: &mut Env<'local>,
    _class: JClass<'local>,
) -> Result<JObjectArray<'local, JString<'local>>> {
    let described = metrics::DEFINITIONS.iter().flat_map(|definition| {
        [
            definition.part,
            definition.name,
            definition.unit,
            kind(definition),
            definition.help,
        ]
    });
    string_array(env, described)
}

fn kind(definition: &metrics::Definition) -> &'static str {
    match definition.kind {
        metrics::Kind::Counter => "counter",
        metrics::Kind::Gauge => "gauge",
    }
}

fn poll_logs<'local>(
    env: &mut Env<'local>,
    _class: JClass<'local>,
    max: jint,
    wait_ms: jint,
) -> Result<JObjectArray<'local, JString<'local>>> {
    let lines = log_queue::poll(usize::try_from(max).unwrap_or(0), args::wait(wait_ms));
    string_array(
        env,
        lines
            .iter()
            .flat_map(|line| [line.level, line.target.as_str(), line.message.as_str()]),
    )
}

fn string_array<'local, 'text>(
    env: &mut Env<'local>,
    texts: impl Iterator<Item = &'text str> + Clone,
) -> Result<JObjectArray<'local, JString<'local>>> {
    let array = JObjectArray::<JString<'local>>::new(env, texts.clone().count(), JString::null())?;
    for (index, text) in texts.enumerate() {
        let string = env.new_string(text)?;
        array.set_element(env, index, &string)?;
        env.delete_local_ref(string);
    }
    Ok(array)
}
