//! Images of a local Docker: as much HTTP over its socket as takes to ask for one.

use std::{
    env,
    io::{self, BufRead, BufReader, Read, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

use serde::Deserialize;

use super::{
    digest::Digest,
    error::{ImageError, ImageResult},
    limits::DOCUMENT_MAX,
};

const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// Of the first line and all headers.
const HEAD_MAX: u64 = 64 << 10;

/// Of what the daemon says when it will not.
const MESSAGE_MAX: u64 = 16 << 10;

/// A large image is written out before its first byte comes.
const SILENCE: Duration = Duration::from_secs(600);

/// What `docker save` would write.
pub(super) fn export(image: &str) -> ImageResult<Box<dyn Read + Send>> {
    ask(image, "get")
}

/// The digest by which Docker knows the image, which is that of its configuration.
pub(super) fn digest(image: &str) -> ImageResult<Option<Digest>> {
    let mut bytes = Vec::new();
    let read = ask(image, "json")?.take(DOCUMENT_MAX).read_to_end(&mut bytes);
    let known = read.ok().and_then(|_| serde_json::from_slice::<Known>(&bytes).ok());
    Ok(known.and_then(|known| known.id.parse().ok()))
}

#[derive(Deserialize)]
struct Known {
    #[serde(rename = "Id")]
    id: String,
}

fn ask(image: &str, about: &str) -> ImageResult<Box<dyn Read + Send>> {
    let source_text = format!("docker-daemon:{image}");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    if image.starts_with('-') || image.contains("..") || !image.bytes().all(plain) {
        let reason = "that is no name of an image".to_owned();
        return Err(ImageError::Source { source_text, reason });
    }
    let socket = socket(env::var("DOCKER_HOST").ok().as_deref())
        .map_err(|reason| ImageError::Source { source_text, reason })?;
    let what = format!("Docker at `{}`", socket.display());
    let unreachable = |source| ImageError::Unreachable { what: what.clone(), source };
    let send = || -> io::Result<BufReader<UnixStream>> {
        let mut stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(SILENCE))?;
        let head = "Host: docker\r\nConnection: close\r\n\r\n";
        write!(stream, "GET /images/{image}/{about} HTTP/1.1\r\n{head}")?;
        Ok(BufReader::new(stream))
    };
    let mut stream = send().map_err(unreachable)?;
    let head = Head::read(&mut stream).map_err(unreachable)?;
    let body = head.body(stream);
    match head.status {
        200 => Ok(body),
        404 => Err(ImageError::Missing { what: format!("image `{image}` in {what}") }),
        status => {
            Err(unreachable(io::Error::other(format!("it answers {status}: {}", message(body)))))
        }
    }
}

/// Why the daemon will not, in its own words.
fn message(body: impl Read) -> String {
    let mut told = Vec::new();
    let _ = body.take(MESSAGE_MAX).read_to_end(&mut told);
    match serde_json::from_slice::<Told>(&told) {
        Ok(told) => told.message,
        Err(_) => String::from_utf8_lossy(&told).trim().to_owned(),
    }
}

#[derive(Deserialize)]
struct Told {
    message: String,
}

fn socket(host: Option<&str>) -> Result<PathBuf, String> {
    match host.filter(|host| !host.is_empty()) {
        None => Ok(DEFAULT_SOCKET.into()),
        Some(host) => host
            .strip_prefix("unix://")
            .map(PathBuf::from)
            .ok_or_else(|| format!("DOCKER_HOST is `{host}`, and only `unix://…` can be asked")),
    }
}

/// The beginning of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    length: Option<u64>,
    is_chunked: bool,
}

impl Head {
    fn read(stream: &mut impl BufRead) -> io::Result<Self> {
        let odd = || io::Error::other("an odd answer");
        let mut stream = stream.take(HEAD_MAX);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let mut words = line.split_ascii_whitespace();
        let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
        let status = words.next().and_then(|word| word.parse().ok());
        let status = status.filter(|_| is_http).ok_or_else(odd)?;
        let (mut length, mut is_chunked) = (None, false);
        loop {
            line.clear();
            stream.read_line(&mut line)?;
            let Some(text) = line.strip_suffix('\n') else { return Err(odd()) };
            let text = text.trim();
            if text.is_empty() {
                return Ok(Self { status, length, is_chunked });
            }
            let (key, value) = text.split_once(':').ok_or_else(odd)?;
            match key.to_ascii_lowercase().as_str() {
                "content-length" => length = Some(value.trim().parse().map_err(|_| odd())?),
                "transfer-encoding" => is_chunked = value.trim().eq_ignore_ascii_case("chunked"),
                _ => {}
            }
        }
    }

    fn body<R: BufRead + Send + 'static>(&self, stream: R) -> Box<dyn Read + Send> {
        match (self.is_chunked, self.length) {
            (true, _) => Box::new(Chunked { stream, left: 0, ended: false }),
            (false, Some(length)) => Box::new(stream.take(length)),
            (false, None) => Box::new(stream),
        }
    }
}

/// A body in pieces, each with its length before it.
struct Chunked<R> {
    stream: R,
    left: u64,
    ended: bool,
}

impl<R: BufRead> Chunked<R> {
    fn next(&mut self) -> io::Result<()> {
        let odd = || io::Error::other("a piece of the answer is malformed");
        let mut line = String::new();
        (&mut self.stream).take(HEAD_MAX).read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::Error::other("the answer is cut short"));
        }
        let length = line.trim().split(';').next().unwrap_or_default();
        self.left = u64::from_str_radix(length, 16).map_err(|_| odd())?;
        self.ended = self.left == 0;
        Ok(())
    }
}

impl<R: BufRead> Read for Chunked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.ended || buffer.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            self.next()?;
            if self.ended {
                return Ok(0);
            }
        }
        let len = (&mut self.stream).take(self.left).read(buffer)?;
        if len == 0 {
            return Err(io::Error::other("the answer is cut short"));
        }
        self.left -= len as u64;
        if self.left == 0 {
            let mut end = [0; 2];
            self.stream.read_exact(&mut end)?;
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(answer: &'static str) -> io::Result<String> {
        let mut stream = answer.as_bytes();
        let head = Head::read(&mut stream)?;
        let mut text = String::new();
        head.body(stream).read_to_string(&mut text)?;
        Ok(format!("{} {text}", head.status))
    }

    #[test]
    fn bodies_of_every_form_are_read_to_their_end() {
        for answer in [
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcdefgh",
            "HTTP/1.0 200 OK\r\n\r\nabcde",
        ] {
            assert_eq!(body(answer).unwrap(), "200 abcde", "{answer}");
        }
    }

    #[test]
    fn what_is_cut_short_or_odd_is_an_error() {
        for answer in [
            "",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: y",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n",
        ] {
            assert!(body(answer).is_err(), "{answer:?}");
        }
    }

    #[test]
    fn only_a_socket_is_asked() {
        assert_eq!(socket(None), Ok(DEFAULT_SOCKET.into()));
        assert_eq!(socket(Some("unix:///run/x.sock")), Ok("/run/x.sock".into()));
        assert!(socket(Some("tcp://10.0.0.1:2375")).unwrap_err().contains("tcp://"));
    }
}
