# Tries what only the machine's root may do, as root of a sandbox. Prints `NAME ERRNO` for each call
# that was refused and `NAME done` for each that was not.
import ctypes, errno, os, socket, sys

libc = ctypes.CDLL(None, use_errno=True)

def call(name, number, *args):
    args = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = libc.syscall(ctypes.c_long(number), *args)
    code = errno.errorcode[ctypes.get_errno()] if result < 0 else 'done'
    print(name, code)
    return result

def attempt(name, action):
    try:
        action()
        print(name, 'done')
    except OSError as err:
        print(name, errno.errorcode[err.errno])

buffer = ctypes.create_string_buffer(4096)
here = b'/tmp/there'
os.makedirs(here, exist_ok=True)

# x86_64
call('mount tmpfs', 165, b'none', here, b'tmpfs', 0, None)
call('mount bind', 165, b'/', here, None, 4096, None)
call('mount proc', 165, b'proc', here, b'proc', 0, None)
call('remount root', 165, None, b'/', None, 32, None)
call('remount /proc/sys', 165, None, b'/proc/sys', None, 32 | 4096, None)
call('umount /proc/sys', 166, b'/proc/sys', 2)
call('umount /proc/kcore', 166, b'/proc/kcore', 2)
call('pivot_root', 155, b'/', b'/tmp')
call('open_tree', 428, -100, b'/', 1)
call('fsopen', 430, b'tmpfs', 0)
call('move_mount', 429, -100, b'/', -100, here, 0)
call('mount_setattr', 442, -100, b'/', 0, buffer, 32)
for name, flag in [('mnt', 0x20000), ('cgroup', 0x2000000), ('uts', 0x4000000), ('ipc', 0x8000000),
                   ('user', 0x10000000), ('pid', 0x20000000), ('net', 0x40000000), ('time', 0x80)]:
    call('unshare ' + name, 272, flag)
    if name != 'time' and call('clone ' + name, 56, flag | 17, 0, 0, 0, 0) == 0:
        os._exit(0)
call('setns', 308, os.open('/proc/self/ns/net', os.O_RDONLY), 0)
call('clone3', 435, ctypes.create_string_buffer(88), 88)
call('ptrace 1', 101, 0x4206, 1, 0, 0)
call('ptrace attach 1', 101, 16, 1, 0, 0)

class Vector(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]

ours, theirs = Vector(ctypes.addressof(buffer), 8), Vector(0x400000, 8)
call('process_vm_readv 1', 310, 1, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
call('pidfd_getfd 1', 438, os.pidfd_open(1), 3, 0)
call('keyctl', 250, 0, -3, 1)
call('add_key', 248, b'user', b'x', b'y', 1, -3)
call('bpf', 321, 0, buffer, 64)
call('perf_event_open', 298, buffer, 0, -1, -1, 0)
call('io_uring_setup', 425, 8, buffer)
call('userfaultfd', 323, 0)
call('open_by_handle_at', 304, -100, buffer, 0)
call('init_module', 175, buffer, 0, b'')
call('kexec_load', 246, 0, 0, 0, 0)
call('swapon', 167, b'/tmp/x', 0)
call('reboot', 169, 0xfee1dead, 672274793, 0)
call('settimeofday', 164, buffer, 0)
call('sethostname', 170, b'x', 1)
call('syslog', 103, 3, buffer, 100)
call('acct', 163, b'/tmp/x')
call('quotactl', 179, 0x800002 << 8, 0, 0, 0)
call('iopl', 172, 3)
for name, family in [('vsock', 40), ('packet', 17), ('alg', 38), ('netlink', 16), ('bluetooth', 31),
                     ('xdp', 44), ('rds', 21), ('can', 29), ('tipc', 30)]:
    attempt('socket ' + name, lambda: socket.socket(family, socket.SOCK_RAW, 0 if name != 'netlink' else 9))
attempt('socket raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt('ioctl TIOCSTI', lambda: __import__('fcntl').ioctl(os.open('/dev/ptmx', os.O_RDWR), 0x5412, b'x'))

attempt('mknod block', lambda: os.mknod('/tmp/block', 0o60666, os.makedev(254, 0)))
attempt('open block', lambda: os.open('/tmp/block', os.O_RDONLY))
attempt('mknod mem', lambda: os.mknod('/tmp/mem', 0o20666, os.makedev(1, 1)))
attempt('mknod mem in /dev', lambda: os.mknod('/dev/mem', 0o20666, os.makedev(1, 1)))
attempt('mknod kmsg in shm', lambda: os.mknod('/dev/shm/kmsg', 0o20666, os.makedev(1, 11)))

def write(path):
    def action():
        with open(path, 'wb', buffering=0) as file:
            file.write(b'0')
    attempt('write ' + path, action)

for path in ['/proc/sys/kernel/hostname', '/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches',
             '/proc/sys/net/ipv4/ip_forward', '/proc/sysrq-trigger', '/proc/irq/default_smp_affinity',
             '/sys/kernel/uevent_helper', '/sys/power/state', '/sys/kernel/mm/ksm/run',
             '/sys/fs/cgroup/cgroup.procs', '/sys/module/module/parameters/sig_enforce',
             '/proc/1/uid_map', '/proc/1/mem']:
    write(path)

for path in ['/proc/1/root', '/proc/1/cwd', '/proc/1/exe', '/proc/1/fd/0', '/proc/1/fd/3', '/proc/1/ns/mnt']:
    attempt('follow ' + path, lambda: os.readlink(path))
for path in ['/proc/1/root/', '/proc/1/environ', '/proc/1/mem', '/proc/1/exe', '/proc/1/maps', '/proc/1/auxv',
             '/proc/1/stack', '/proc/1/syscall', '/proc/kmsg', '/dev/mem', '/dev/kmsg', '/dev/vda']:
    attempt('open ' + path, lambda: os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1))
attempt('chmod /proc/kcore', lambda: os.chmod('/proc/kcore', 0o644))
attempt('chmod /dev/full', lambda: os.chmod('/dev/full', 0o644))
attempt('utime /dev/full', lambda: os.utime('/dev/full', (1, 1)))
attempt('chown /dev/full', lambda: os.chown('/dev/full', 1, 1))
attempt('fchmod of the standard input', lambda: os.fchmod(0, 0o644))
