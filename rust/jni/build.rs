//! Link arguments of the library and the target it is built for.

use std::{env, error::Error};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=ALLUVIUM_TARGET={}", env::var("TARGET")?);
    if env::var("CARGO_CFG_TARGET_OS")? == "linux" {
        // rustc exports what this crate names for the JVM, and whatever C symbols its dependencies have; these stay inside.
        // A version script of our own would be a second one, which GNU ld refuses.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
        // Threads may still run in it when the JVM unloads the class loader that loaded it.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    Ok(())
}
