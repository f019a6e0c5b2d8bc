//! A socket between somebody and an engine, at which things go wrong.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

/// When it goes wrong, at the request that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The engine never hears of it.
    Before,
    /// The engine has heard of it, and has not answered.
    During,
    /// The engine has done it, and nobody hears of that.
    After,
}

/// Lets requests pass that change something, up to the one that was chosen.
#[derive(Debug)]
pub struct Proxy {
    pub path: PathBuf,
    state: Arc<State>,
}

struct State {
    engine: PathBuf,
    count: usize,
    cut: Cut,
    seen: AtomicUsize,
    reached: AtomicBool,
    /// What goes wrong; without it, nothing passes any more.
    disaster: Option<Box<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} request {} of {}", self.cut, self.count, self.engine.display())
    }
}

impl Proxy {
    /// From the request that was chosen on, nothing passes.
    #[must_use]
    pub fn cutting(directory: &Path, engine: PathBuf, count: usize, cut: Cut) -> Self {
        Self::new(directory, engine, count, cut, None)
    }

    /// At the request that was chosen, something happens, and nobody hears of what the engine answers.
    #[must_use]
    pub fn with(
        directory: &Path,
        engine: PathBuf,
        count: usize,
        cut: Cut,
        disaster: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self::new(directory, engine, count, cut, Some(Box::new(disaster)))
    }

    fn new(
        directory: &Path,
        engine: PathBuf,
        count: usize,
        cut: Cut,
        disaster: Option<Box<dyn Fn() + Send + Sync>>,
    ) -> Self {
        let path = directory.join(format!("proxy-{count}-{cut:?}.sock"));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("a socket");
        let (seen, reached) = (AtomicUsize::new(0), AtomicBool::new(false));
        let state = Arc::new(State { engine, count, cut, seen, reached, disaster });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || {
                    let _ = state.carry(client);
                });
            }
        });
        Self { path, state }
    }

    /// Whether the request that was chosen ever came.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.state.reached.load(Ordering::SeqCst)
    }

    /// How many requests came that change something.
    #[must_use]
    pub fn seen(&self) -> usize {
        self.state.seen.load(Ordering::SeqCst)
    }
}

impl State {
    fn carry(&self, mut client: UnixStream) -> io::Result<()> {
        let Some(head) = read_head(&mut client)? else { return Ok(()) };
        let changes = !head.starts_with(b"GET") && !head.starts_with(b"HEAD");
        let is_it = changes && self.seen.fetch_add(1, Ordering::SeqCst) == self.count;
        if is_it {
            self.reached.store(true, Ordering::SeqCst);
        }
        let dead = self.disaster.is_none() && self.reached.load(Ordering::SeqCst);
        if dead && !is_it || is_it && self.cut == Cut::Before {
            self.strike();
            return client.shutdown(Shutdown::Both);
        }
        let mut server = UnixStream::connect(&self.engine)?;
        server.write_all(&head)?;
        let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || {
            let _ = io::copy(&mut from_client, &mut to_server);
            let _ = to_server.shutdown(Shutdown::Write);
        });
        if is_it {
            if self.cut == Cut::After {
                let _ = io::copy(&mut server, &mut io::sink());
            }
            self.strike();
            return client.shutdown(Shutdown::Both);
        }
        let copied = io::copy(&mut server, &mut client);
        // Also after an error: the other direction still holds the client.
        client.shutdown(Shutdown::Both)?;
        copied.map(drop)
    }

    fn strike(&self) {
        if let Some(disaster) = &self.disaster {
            disaster();
        }
    }
}

fn read_head(client: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if client.read(&mut byte)? == 0 {
            return Ok(None);
        }
        head.push(byte[0]);
    }
    Ok(Some(head))
}
