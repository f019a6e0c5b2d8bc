//! All that depends on the processor. A port replaces this module, and nothing else.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::Registers;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("forkpoint-checkpoint knows x86-64 only");
