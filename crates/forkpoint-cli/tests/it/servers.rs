//! A registry and a Docker, as small as they can be.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read, Write},
    net::TcpListener,
    os::unix::net::UnixListener,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use forkpoint_testkit::image::{INDEX, MANIFEST, TestImage, archive, digest};
use serde_json::json;

/// `me:secret` in base 64.
pub(crate) const LOGIN: &str = "bWU6c2VjcmV0";

const TOKEN: &str = "t0ken";

/// What a registry does that it should not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    #[default]
    Good,
    /// Blobs have a byte that is wrong.
    Lies,
    /// Blobs come so slowly that somebody loses patience.
    Slow,
}

/// Wants a token, hands one out for a login, and sends on to another place for blobs.
pub(crate) struct Registry {
    pub(crate) host: String,
    asked: Arc<Mutex<Vec<String>>>,
}

struct Shelf {
    host: String,
    mood: Mood,
    manifests: BTreeMap<String, (String, Vec<u8>)>,
    blobs: BTreeMap<String, Vec<u8>>,
}

impl Registry {
    pub(crate) fn serve(image: &TestImage, mood: Mood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let host = format!("127.0.0.1:{}", listener.local_addr().expect("a port").port());
        let found = image.blobs();
        let manifest = found.blobs[&found.manifest].clone();
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [
            {"mediaType": MANIFEST, "digest": digest(b"other"), "size": 5,
                "platform": {"os": "linux", "architecture": "mips"}},
            {"mediaType": MANIFEST, "digest": found.manifest, "size": manifest.len(),
                "platform": {"os": "linux", "architecture": image.architecture}},
        ]});
        let index = index.to_string().into_bytes();
        let manifests = BTreeMap::from([
            ("v1".to_owned(), (INDEX.to_owned(), index.clone())),
            (digest(&index), (INDEX.to_owned(), index)),
            (found.manifest.clone(), (MANIFEST.to_owned(), manifest)),
        ]);
        let shelf = Arc::new(Shelf { host: host.clone(), mood, manifests, blobs: found.blobs });
        let asked = Arc::new(Mutex::default());
        let log: Arc<Mutex<Vec<String>>> = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shelf, log) = (Arc::clone(&shelf), Arc::clone(&log));
                thread::spawn(move || {
                    let Some(request) = Request::read(&stream) else { return };
                    log.lock().expect("the log").push(request.path.clone());
                    // Who asked may have gone.
                    let _ = shelf.answer(&request, &stream);
                });
            }
        });
        Self { host, asked }
    }

    pub(crate) fn image(&self) -> String {
        format!("registry:{}/team/app:v1", self.host)
    }

    /// How often a blob was sent.
    pub(crate) fn blobs_sent(&self) -> usize {
        self.asked.lock().expect("the log").iter().filter(|path| path.starts_with("/far/")).count()
    }
}

struct Request {
    path: String,
    pass: String,
}

impl Request {
    fn read(stream: impl Read) -> Option<Self> {
        let mut lines = BufReader::new(stream).lines();
        let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
        let mut pass = String::new();
        for line in lines {
            let line = line.ok()?;
            if line.is_empty() {
                return Some(Self { path, pass });
            }
            let (key, value) = line.split_once(':')?;
            if key.eq_ignore_ascii_case("authorization") {
                value.trim().clone_into(&mut pass);
            }
        }
        None
    }
}

fn send(mut to: impl Write, head: &str, body: &[u8]) -> std::io::Result<()> {
    write!(to, "HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    to.write_all(body)
}

impl Shelf {
    fn answer(&self, request: &Request, to: impl Write) -> std::io::Result<()> {
        let path = request.path.as_str();
        if path.starts_with("/token") {
            let right = format!("Basic {LOGIN}");
            let asks = path.contains("repository") && path.contains("service=here");
            return match request.pass == right && asks {
                true => send(to, "200 OK", json!({"token": TOKEN}).to_string().as_bytes()),
                false => send(to, "401 Unauthorized", b""),
            };
        }
        if let Some(name) = path.strip_prefix("/far/") {
            // A pass that was for the registry must not come here.
            let head = if request.pass.is_empty() { "200 OK" } else { "500 Leaked" };
            return self.send_blob(to, head, &self.blobs[name]);
        }
        if request.pass != format!("Bearer {TOKEN}") {
            let realm = format!("Bearer realm=\"http://{}/token\",service=\"here\"", self.host);
            return send(to, &format!("401 Unauthorized\r\nWWW-Authenticate: {realm}"), b"");
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        if path.starts_with("/v2/team/app/blobs/") && self.blobs.contains_key(name) {
            let far = format!("http://{}/far/{name}", self.host);
            return send(to, &format!("307 Elsewhere\r\nLocation: {far}"), b"");
        }
        match self.manifests.get(name).filter(|_| path.starts_with("/v2/team/app/manifests/")) {
            Some((kind, bytes)) => send(to, &format!("200 OK\r\nContent-Type: {kind}"), bytes),
            None => send(to, "404 Not Found", b""),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "slowness is what it is for")]
    fn send_blob(&self, mut to: impl Write, head: &str, blob: &[u8]) -> std::io::Result<()> {
        let mut blob = blob.to_vec();
        match self.mood {
            Mood::Good => send(to, head, &blob),
            Mood::Lies => {
                let middle = blob.len() / 2;
                blob[middle] ^= 1;
                send(to, head, &blob)
            }
            Mood::Slow => {
                let len = blob.len();
                let close = "Connection: close";
                write!(to, "HTTP/1.1 {head}\r\nContent-Length: {len}\r\n{close}\r\n\r\n")?;
                for bytes in blob.chunks(64) {
                    to.write_all(bytes)?;
                    thread::sleep(Duration::from_millis(20));
                }
                Ok(())
            }
        }
    }
}

/// A Docker that has one image, `app:v1`, and sends it in pieces. Answers with how often it has.
pub(crate) fn serve_docker(socket: &Path, image: &TestImage) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(socket).expect("a socket");
    let known = json!({"Id": digest(&image.config())}).to_string();
    let image = archive(&image.saved_old());
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let Some(request) = Request::read(&stream) else { continue };
            let mut to = &stream;
            let _ = match request.path.as_str() {
                "/images/app:v1/json" => send(to, "200 OK", known.as_bytes()),
                "/images/app:v1/get" => {
                    count.fetch_add(1, Ordering::Relaxed);
                    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                    let mut sent = to.write_all(head.as_bytes());
                    for piece in image.chunks(70_000) {
                        sent = sent.and_then(|()| write!(to, "{:x}\r\n", piece.len()));
                        sent = sent.and_then(|()| to.write_all(piece));
                        sent = sent.and_then(|()| to.write_all(b"\r\n"));
                    }
                    sent.and_then(|()| to.write_all(b"0\r\n\r\n"))
                }
                "/images/odd/json" => send(to, "500 Odd", br#"{"message": "out of breath"}"#),
                _ => send(to, "404 Not Found", br#"{"message": "no such image"}"#),
            };
        }
    });
    sent
}

/// Docker's own configuration with a login for a registry, in the file itself.
pub(crate) fn log_in(directory: &Path, host: &str) {
    fs::create_dir_all(directory).expect("a directory");
    let config = json!({"auths": {host: {"auth": LOGIN}}});
    fs::write(directory.join("config.json"), config.to_string()).expect("a file");
}
