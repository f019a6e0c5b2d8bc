//! Programs with threads.

use crate::place::{Place, until};

const THREADS: &str = "
import threading, time, os
heap = bytearray(os.urandom(1 << 20)) * 4
counts = [0] * 4
tids = [0] * 4
def work(n):
    tids[n] = threading.get_native_id()
    while True:
        counts[n] += 1
        heap[n * 4096 + counts[n] % 4096] = counts[n] & 255
        time.sleep(0.002)
for n in range(4): threading.Thread(target=work, args=(n,), daemon=True).start()
while True:
    with open('/mnt/count.new', 'w') as f: f.write(str(min(counts)))
    with open('/mnt/all.new', 'w') as f: f.write(' '.join(map(str, tids)) + ' ' + str([threading.get_native_id()]))
    os.rename('/mnt/all.new', '/mnt/all'); os.rename('/mnt/count.new', '/mnt/count')
    time.sleep(0.002)
";

#[test]
fn all_threads_go_on() {
    let mut place = Place::new();
    let mut sandbox = place.python(THREADS);
    let mut before = place.grows("count", 5);
    let numbers = place.read("all");
    for _ in 0..3 {
        let captured = place.capture(&sandbox);
        let threads = captured.snapshot.processes[0].alive().unwrap().threads.len();
        assert_eq!(threads, 5);
        let after = place.grows("count", before + 2);
        assert_eq!(place.read("all"), numbers, "the original goes on as it was");
        drop(sandbox);
        place.put("count", "0");
        place.put("all", "");
        sandbox = place.restore();
        before = place.grows("count", before);
        until("numbers of threads", || (place.read("all") == numbers).then_some(()));
        assert!(after > 0);
    }
}

#[test]
fn asyncio_goes_on() {
    let mut place = Place::new();
    let program = "
import asyncio, os
async def main():
    queue = asyncio.Queue()
    async def make():
        n = 0
        while True:
            n += 1
            await queue.put(n)
            await asyncio.sleep(0.002)
    asyncio.create_task(make())
    loop = asyncio.get_running_loop()
    while True:
        n = await queue.get()
        if n % 50 == 0: await loop.run_in_executor(None, os.getpid)
        with open('/mnt/count.new', 'w') as f: f.write(str(n))
        os.rename('/mnt/count.new', '/mnt/count')
asyncio.run(main())
";
    let mut sandbox = place.python(program);
    let mut before = place.grows("count", 60);
    for _ in 0..3 {
        place.capture(&sandbox);
        drop(sandbox);
        place.put("count", "0");
        sandbox = place.restore();
        before = place.grows("count", before);
    }
}
