# Prints everything about a tree that a snapshot must keep, one line for each name.
import hashlib, os, stat, sys

def describe(path):
    seen = os.lstat(path)
    kind = stat.S_IFMT(seen.st_mode)
    fields = [path.hex(), oct(seen.st_mode), seen.st_uid, seen.st_gid, seen.st_mtime_ns]
    if stat.S_ISREG(seen.st_mode):
        with open(path, 'rb') as file:
            fields += [seen.st_size, hashlib.sha256(file.read()).hexdigest()]
        fields.append('sparse' if seen.st_blocks * 512 + 65536 < seen.st_size else 'dense')
    if stat.S_ISLNK(seen.st_mode):
        fields.append(os.readlink(path).hex())
    names = sorted(os.listxattr(path, follow_symlinks=False))
    fields += ['%s=%s' % (name, os.getxattr(path, name, follow_symlinks=False).hex()) for name in names]
    return seen, fields

def walk(path, lines, links):
    if path == b'/etc/machine-id':
        return  # Each has its own.
    seen, fields = describe(path)
    if not stat.S_ISDIR(seen.st_mode):
        links.setdefault((seen.st_dev, seen.st_ino), []).append(path.hex())
    lines.append(fields)
    if stat.S_ISDIR(seen.st_mode) and not (os.path.ismount(path) and path not in ROOTS):
        for name in sorted(os.listdir(path)):
            walk(path.rstrip(b'/') + b'/' + name, lines, links)

ROOTS = [root.encode() for root in sys.argv[1:]]
for root in ROOTS:
    lines, links = [], {}
    walk(root, lines, links)
    for fields in lines:
        print(*fields)
    for group in sorted(links.values()):
        if len(group) > 1:
            print('linked', *group)
