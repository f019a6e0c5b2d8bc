//! Process 1 and launcher of bare sandboxes, for this crate's tests.

fn main() {
    forkpoint_checkpoint::bare::run_if_asked();
    eprintln!("this program is started by tests");
    std::process::exit(2);
}
