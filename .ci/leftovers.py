#!/usr/bin/env python3
"""What tests leave on a machine, where others may be at work.

    leftovers.py note FILE     writes down what is there before them
    leftovers.py check FILE    tells what is there after them and was not before, and fails if anything is

The tests have a directory for themselves, TMPDIR. What has its name in it is theirs: files, mounts, loop devices,
and processes, which have it in their environment or among their arguments. Of the rest we know the names: cgroups,
files that tests put elsewhere, data directories that nobody asked for, interfaces of a Docker.
"""

import glob, os, sys, time

# Whatever is killed or thrown away goes in the background.
LOOKS = int(os.environ.get('FORKPOINT_LOOKS', 80))
PAUSE_S = 0.5
# How often in a row something of ours is seen that stays.
STAYS = 5

ELSEWHERE = ['/tmp/forkpoint-demo-*', '/dev/shm/forkpoint-demo-*', '/var/tmp/forkpoint-test-*', '/forkpoint-test-*',
             '/etc/forkpoint-test-*', '/root/forkpoint-test-*', '/var/forkpoint-test-*', '/var/lib/forkpoint',
             '~/.local/share/forkpoint', '~/.config/forkpoint']


def read(path):
    try:
        with open(path, 'rb') as file:
            return file.read().decode(errors='replace')
    except OSError:
        return ''


def names(directory):
    try:
        return [os.path.join(directory, name) for name in os.listdir(directory)]
    except OSError:
        return []


def files(here):
    found = [path for top in [here] + names(here) for path in names(top)]
    for pattern in ELSEWHERE:
        found += glob.glob(os.path.expanduser(pattern))
    return ['file ' + path for path in found]


def mounts(here):
    """Namespaces of networks that have a name are mounts too."""
    lines = read('/proc/self/mountinfo').splitlines()
    found = ['mount ' + line.split()[4] for line in lines if here in line]
    return found + ['namespace ' + line.split()[4] for line in lines if ' - nsfs ' in line]


def loops(here):
    backing = {path: read(path).strip() for path in glob.glob('/sys/block/loop*/loop/backing_file')}
    return ['loop device %s of %s' % (path.split('/')[3], file) for path, file in backing.items() if here in file]


def parent(pid):
    fields = read('/proc/%d/stat' % pid).rpartition(') ')[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def above(pid):
    """Those that started whoever started it."""
    while pid > 1:
        pid = parent(pid)
        yield pid


def processes(here):
    found = []
    for pid in sorted(int(name) for name in os.listdir('/proc') if name.isdigit()):
        arguments = read('/proc/%d/cmdline' % pid)
        if here in read('/proc/%d/environ' % pid) or here in arguments:
            if pid != os.getpid() and pid not in above(os.getpid()):
                found.append('process %d: %s' % (pid, arguments.replace('\0', ' ')[:200]))
    return found


def cgroups():
    """One with a process in it belongs to whom the process belongs to."""
    found = []
    for top, directories, _ in os.walk('/sys/fs/cgroup'):
        if os.path.basename(top) == 'forkpoint':
            paths = [os.path.join(top, name) for name in directories] or [top]
            found += ['cgroup ' + path for path in paths if not read(path + '/cgroup.procs') and os.path.isdir(path)]
    return found


def interfaces():
    """A Docker that runs has some of its own."""
    if any(read(path) == 'dockerd\n' for path in glob.glob('/proc/[0-9]*/comm')):
        return []
    known = os.listdir('/sys/class/net')
    return ['interface ' + name for name in known if name.startswith(('docker', 'br-', 'veth'))]


def look(here):
    return set(files(here) + mounts(here) + loops(here) + processes(here) + cgroups() + interfaces())


def left(here, before):
    """Others come and go: what counts is what is found again and again."""
    looks = []
    for _ in range(LOOKS):
        looks.append(look(here) - before)
        if looks[-2:] == [set(), set()]:
            return set()
        time.sleep(PAUSE_S)
    return set.intersection(*looks[-STAYS:])


def main():
    here = os.environ.get('TMPDIR', '').rstrip('/')
    if here in ('', '/tmp', '/var/tmp') or len(sys.argv) != 3 or sys.argv[1] not in ('note', 'check'):
        sys.exit('usage: TMPDIR=DIRECTORY leftovers.py note|check FILE, with a directory for the tests alone')
    if sys.argv[1] == 'note':
        with open(sys.argv[2], 'w') as file:
            file.writelines(line.replace('\n', ' ') + '\n' for line in sorted(look(here)))
        return
    found = left(here, set(read(sys.argv[2]).splitlines()))
    if found:
        sys.exit('\n'.join(['left behind:'] + ['  ' + line for line in sorted(found)]))


main()
