//! Sockets that listen, and pairs.

use crate::place::{Place, until};

const SERVER: &str = "
import socket, selectors, os
tcp = socket.create_server(('127.0.0.1', 8080), backlog=7)
tcp.setblocking(False)
unix = socket.socket(socket.AF_UNIX); unix.bind('/mnt/server'); unix.listen(); unix.setblocking(False)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('127.0.0.1', 9090)); udp.setblocking(False)
a, b = socket.socketpair()
a.sendall(b'on its way')
selector = selectors.DefaultSelector()
for s in (tcp, unix, udp): selector.register(s, selectors.EVENT_READ)
open('/mnt/ready', 'w').write('1')
served = 0
while True:
    for key, _ in selector.select():
        s = key.fileobj
        if s is udp:
            data, peer = udp.recvfrom(100)
            udp.sendto(b'udp ' + data, peer)
            continue
        connection, _ = s.accept()
        served += 1
        if s is unix:
            connection.sendall(b'unix ' + b.recv(100) + b' ' + a.getsockname().__repr__().encode())
            a.sendall(b'again')
        else:
            connection.sendall(f'tcp {served} {os.getpid()}'.encode())
        connection.close()
";

/// Asks from inside.
const CLIENT: &str = "
import socket, sys
kind = sys.argv[1]
if kind == 'udp':
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(30); s.sendto(b'hello', ('127.0.0.1', 9090))
    print(s.recv(100).decode())
else:
    s = socket.create_connection(('127.0.0.1', 8080)) if kind == 'tcp' else socket.socket(socket.AF_UNIX)
    if kind == 'unix': s.connect('/mnt/server')
    data = b''
    while True:
        part = s.recv(100)
        if not part: break
        data += part
    print(data.decode())
";

#[test]
fn a_server_still_answers() {
    let mut place = Place::new();
    let sandbox = place.python(SERVER);
    until("it listens", || Some(place.number("ready")).filter(|ready| *ready == 1));
    let ask =
        |sandbox, kind: &str| place.inside(sandbox, &["/usr/bin/python3", "-c", CLIENT, kind]);
    assert_eq!(ask(&sandbox, "tcp"), "tcp 1 2");
    let images = {
        let captured = crate::place::try_capture(&sandbox).unwrap();
        assert_eq!(ask(&sandbox, "tcp"), "tcp 2 2", "the original goes on");
        captured
    };
    drop(sandbox);
    place.write(&images);
    let copy = place.restore();
    let ask = |kind: &str| place.inside(&copy, &["/usr/bin/python3", "-c", CLIENT, kind]);
    assert_eq!(ask("tcp"), "tcp 2 2");
    assert_eq!(ask("unix"), "unix on its way ''");
    assert_eq!(ask("unix"), "unix again ''");
    assert_eq!(ask("udp"), "udp hello");
}

#[test]
fn connections_inside_go_on() {
    crate::locks::answers(
        "
listener = socket.create_server(('127.0.0.1', 8081))
clients = [socket.create_connection(('127.0.0.1', 8081)) for _ in range(3)]
servers = [listener.accept()[0] for _ in clients]
names = [(c.getsockname(), c.getpeername()) for c in clients + servers]
clients[0].sendall(b'to the server'); servers[0].sendall(b'to the client')
clients[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); clients[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 7, 0))
clients[1].sendall(b'last words'); clients[1].shutdown(socket.SHUT_WR)
clients[2].sendall(b'farewell'); clients[2].close()
both = socket.create_server(('::', 8082), family=socket.AF_INET6, dualstack_ipv6=True)
four = socket.create_connection(('127.0.0.1', 8082)); six, _ = both.accept()
full = socket.socket(); full.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536); full.connect(('127.0.0.1', 8081)); reading, _ = listener.accept()
full.setblocking(False); sent = 0
try:
    while True: sent += full.send(bytes([sent // 1000 % 251]) * 1000)
except BlockingIOError: pass
full.setblocking(True)
poll = select.epoll(); poll.register(servers[0], select.EPOLLIN)
def told():
    yield [(c.getsockname(), c.getpeername()) for c in clients[:2] + servers[:2]] == names[:2] + names[3:5]
    yield len(poll.poll(5)), servers[0].recv(100), clients[0].recv(100)
    yield clients[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), clients[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)[0]
    clients[0].sendall(b'more'); yield servers[0].recv(100)
    yield servers[1].recv(100), servers[1].recv(100)
    servers[1].sendall(b'still open'); yield clients[1].recv(100)
    yield servers[2].recv(100), servers[2].recv(100)
    four.sendall(b'mapped'); yield six.recv(100), six.getpeername()[0], four.family == socket.AF_INET
    full.shutdown(socket.SHUT_WR); got = b''
    while part := reading.recv(1 << 20): got += part
    yield len(got) == sent and sent > 70000, full.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), all(got[at] == at // 1000 % 251 for at in range(0, len(got), 77))
    late = socket.create_connection(('127.0.0.1', 8081)); yield listener.accept()[1] == late.getsockname()
    yield listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR), clients[0].getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
",
        "True\n(1, b'to the server', b'to the client')\n(1, 7)\nb'more'\n(b'last words', b'')\nb'still open'\n\
         (b'farewell', b'')\n(b'mapped', '::ffff:127.0.0.1', True)\n(True, 131072, True)\nTrue\n(1, 0)",
    );
}

/// By choice, and only in copies.
#[test]
fn connections_to_somebody_outside_are_reset() {
    use forkpoint_checkpoint::{CaptureSpec, Connections, Tree, capture};
    let mut place = Place::new();
    let program = "
import os, socket, time
os.system('ip addr add 192.0.2.1/24 dev lo')
s = socket.create_server(('192.0.2.1', 81)); c = socket.create_connection(('192.0.2.1', 81)); d, _ = s.accept(); s.close()
open('/mnt/ready', 'w').write('1')
while not os.path.exists('/mnt/go'): time.sleep(0.005)
def told():
    for end in (c, d):
        try: yield end.recv(100)
        except ConnectionResetError: yield 'reset', end.recv(100)
        try: yield end.send(b'x')
        except BrokenPipeError: yield 'broken'
open('/mnt/answer.new', 'w').write(str(list(told()))); os.rename('/mnt/answer.new', '/mnt/answer')
time.sleep(1000)
";
    let sandbox = place.python(program);
    until("ready", || Some(place.number("ready")).filter(|ready| *ready == 1));
    let spec = CaptureSpec { connections: Connections::Close, ..CaptureSpec::default() };
    let captured = capture(&Tree::below(sandbox.init), &spec, || place.keep_files()).unwrap();
    place.write(&captured);
    drop(sandbox);
    let _copy = place.restore();
    place.put("go", "");
    let answer = until("an answer", || Some(place.read("answer")).filter(|text| !text.is_empty()));
    assert_eq!(answer, "[('reset', b''), 'broken', ('reset', b''), 'broken']");
}
