//! Every failure of a native method as one Java exception, `NativeException(kind, retryable, message)`.
//!
//! # Invariants
//! * The class and its constructor are looked up once, by `init`, which is given the class: other threads and later calls
//!   may not see the plugin's class loader.
//! * A panic keeps its text, formatted or not.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
};

use alluvium_engine::{Error, ErrorKind};
use jni::{
    Env, jni_sig, jni_str,
    objects::{Global, JClass, JMethodID, JThrowable, JValue},
};

/// Result of a native method before it becomes a value or an exception.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Why a native method fails.
#[derive(Debug)]
pub(crate) enum Failure {
    Engine(Error),
    Jni(jni::errors::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Engine(error)
    }
}

impl From<jni::errors::Error> for Failure {
    fn from(error: jni::errors::Error) -> Self {
        Failure::Jni(error)
    }
}

/// Arguments that our own Java class never gives.
pub(crate) fn invalid(message: impl Into<String>) -> Failure {
    Failure::Engine(Error::new(ErrorKind::Invalid, message))
}

/// An id that is closed, or never was.
pub(crate) fn closed(what: &str) -> Failure {
    Failure::Engine(Error::new(ErrorKind::Closed, format!("the {what} is closed")))
}

static EXCEPTION: OnceLock<ExceptionClass> = OnceLock::new();

struct ExceptionClass {
    class: Global<JClass<'static>>,
    constructor: JMethodID,
}

/// Remembers the exception's class; a second call changes nothing.
pub(crate) fn set_exception_class(env: &mut Env<'_>, class: &JClass<'_>) -> Result<()> {
    if EXCEPTION.get().is_none() {
        let constructor = env.get_method_id(class, jni_str!("<init>"), jni_sig!("(IZLjava/lang/String;)V"))?;
        let class = env.new_global_ref(class)?;
        // Another thread of the same class loader may have been faster, with the same class.
        let _ = EXCEPTION.set(ExceptionClass { class, constructor });
    }
    Ok(())
}

/// Throws failures and panics; the value returned beside them means nothing to Java.
pub(crate) struct Throw;

impl<T: Default> jni::errors::ErrorPolicy<T, Failure> for Throw {
    type Captures<'unowned_env_local: 'native_method, 'native_method> = ();

    fn on_error<'unowned_env_local: 'native_method, 'native_method>(
        env: &mut Env<'unowned_env_local>,
        _captures: &mut Self::Captures<'unowned_env_local, 'native_method>,
        failure: Failure,
    ) -> jni::errors::Result<T> {
        let error = match failure {
            Failure::Engine(error) => error,
            Failure::Jni(error) => Error::new(
                ErrorKind::Internal,
                format!("call between Java and native code: {error}"),
            ),
        };
        throw(env, &error)?;
        Ok(T::default())
    }

    fn on_panic<'unowned_env_local: 'native_method, 'native_method>(
        env: &mut Env<'unowned_env_local>,
        _captures: &mut Self::Captures<'unowned_env_local, 'native_method>,
        payload: Box<dyn Any + Send + 'static>,
    ) -> jni::errors::Result<T> {
        let error = Error::panic(payload.as_ref());
        // Whatever was panicked with may panic again when it is dropped; that one is leaked.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(again);
        }
        throw(env, &error)?;
        Ok(T::default())
    }
}

fn throw(env: &mut Env<'_>, error: &Error) -> jni::errors::Result<()> {
    // An exception of the JVM's own, such as OutOfMemoryError, says more than ours, and forbids further calls.
    if env.exception_check() {
        return Ok(());
    }
    let Some(exception) = EXCEPTION.get() else {
        // Only `init` itself can come here.
        let message = jni::strings::JNIString::new(error.to_string());
        return thrown(env.throw_new(jni_str!("java/lang/IllegalStateException"), message));
    };
    let message = env.new_string(error.to_string())?;
    let arguments = [
        JValue::Int(error.kind() as i32).as_jni(),
        JValue::Bool(error.is_retryable()).as_jni(),
        JValue::Object(&message).as_jni(),
    ];
    #[expect(unsafe_code, reason = "the checked call looks the constructor up by name each time")]
    // SAFETY: the id was got for exactly this class and signature, (int, boolean, String), which the arguments match.
    let object = unsafe { env.new_object_unchecked(&exception.class, exception.constructor, &arguments)? };
    let throwable = env.cast_local::<JThrowable<'_>>(object)?;
    thrown(env.throw(throwable))
}

/// Throwing reports the exception it has thrown as an error.
fn thrown(result: jni::errors::Result<()>) -> jni::errors::Result<()> {
    match result {
        Err(jni::errors::Error::JavaException) => Ok(()),
        other => other,
    }
}
