//! Links what unwinds the stack into the program, where the compiler has it as an archive.
//!
//! The shared one, `libgcc_s`, asks the processor what it can do whenever a program starts. Under a
//! hypervisor each such question costs microseconds, and every command, every sandbox's first
//! process is a program that starts: a tenth of a millisecond of each, and a library less to map.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CC");
    let target = |what: &str| env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    if target("OS") == "linux" && target("ENV") == "gnu" && has_archive() {
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    }
}

/// A compiler that has no such file answers with its bare name.
fn has_archive() -> bool {
    let cc = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let Ok(answer) = Command::new(cc).arg("-print-file-name=libgcc_eh.a").output() else {
        return false;
    };
    Path::new(String::from_utf8_lossy(&answer.stdout).trim()).is_absolute()
}
