//! For programs whose `main` does not begin with `run_if_asked`: the local driver can be given this
//! one as its helper.

fn main() {
    forkpoint_backends::driver::local::run_if_asked();
    eprintln!("forkpoint-spawner: started by the local driver, and of no use otherwise");
    std::process::exit(2);
}
