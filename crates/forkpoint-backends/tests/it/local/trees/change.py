# Changes trees at random: the seed comes as the first argument, how often as the second, and where as
# the rest. What cannot be done to a tree as it is changes nothing. No link is gone through: one that it made
# itself leads to `/`, and what is removed or written there is not part of what is compared.
import os, random, shutil, socket, stat, sys

dice = random.Random(int(sys.argv[1]))
NAMES = [b'a', b'b', b'c', b'dir', b'\xff\xfe odd\n', b'...', b'x y', b'mount', 'ü'.encode()]

def somewhere(root):
    """A name that is there, more often than not."""
    path = root
    for _ in range(dice.randint(1, 4)):
        if os.path.islink(path):
            return path
        try:
            there = os.listdir(path) if dice.random() < 0.7 else []
        except OSError:
            there = []
        path = path + b'/' + (dice.choice(sorted(there)) if there else dice.choice(NAMES))
    return path

def regular(path):
    """Opening a pipe waits for somebody at its other end, and a link leads elsewhere."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError('not a file')

def write(path):
    regular(path)
    with open(path, 'wb') as file:
        file.write(dice.randbytes(dice.randint(0, 40)) * dice.randint(0, 3000))

def append(path):
    regular(path)
    with open(path, 'ab') as file:
        file.write(b'more')

def overwrite(path):
    regular(path)
    with open(path, 'r+b') as file:
        file.write(b'over')

def sparse(path):
    regular(path)
    with open(path, 'wb') as file:
        file.truncate(dice.randint(1, 4) << 20)
        file.seek(dice.randint(0, 1 << 20))
        file.write(b'data')

def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)

def replace(path):
    remove(path)
    os.mkdir(path)
    write(path + b'/new')

def make_socket(path):
    server = socket.socket(socket.AF_UNIX)
    os.chdir(os.path.dirname(path))
    server.bind(os.path.basename(path))
    os.chdir('/')

def mode(path):
    if not os.path.islink(path):
        os.chmod(path, dice.choice([0, 0o400, 0o4755, 0o2775, 0o1777, 0o6711, dice.randint(0, 0o7777)]))

def attribute(path):
    os.setxattr(path, b'user.test%d' % dice.randint(0, 3), dice.randbytes(dice.randint(0, 30)), follow_symlinks=False)

def no_attribute(path):
    os.removexattr(path, b'user.test%d' % dice.randint(0, 3), follow_symlinks=False)

def truncate(path):
    regular(path)
    os.truncate(path, dice.randint(0, 5000))

def tree(path):
    if os.path.islink(path):
        raise OSError('a link')
    os.makedirs(path + b'/deep/er')
    for name in NAMES:
        write(path + b'/deep/er/' + name)

def swap(one, two):
    import ctypes
    ctypes.CDLL(None).renameat2(-100, one, -100, two, 2)

ROOTS = [root.encode() for root in sys.argv[3:]]
CHANGES = [
    (6, write), (3, append), (2, overwrite), (2, sparse), (4, os.mkdir), (2, tree), (4, remove), (3, replace),
    (3, mode), (1, os.mkfifo), (1, make_socket), (2, attribute), (1, no_attribute),
    (2, lambda path: os.symlink(dice.choice([b'/etc/passwd', b'../' * 9, b'a', b'\xff']), path)),
    (2, lambda path: os.chown(path, dice.randint(0, 70000), dice.randint(0, 70000), follow_symlinks=False)),
    (2, lambda path: os.utime(path, ns=(5, dice.randint(0, 1 << 61)), follow_symlinks=False)),
    (3, lambda path: os.link(path, somewhere(dice.choice(ROOTS)), follow_symlinks=False)),
    (4, lambda path: os.rename(path, somewhere(dice.choice(ROOTS)))),
    (2, lambda path: swap(path, somewhere(dice.choice(ROOTS)))),
    (1, truncate),
]
weights, actions = zip(*CHANGES)
for _ in range(int(sys.argv[2])):
    path = somewhere(dice.choice(ROOTS))
    try:
        dice.choices(actions, weights)[0](path)
    except (OSError, shutil.Error):
        pass
