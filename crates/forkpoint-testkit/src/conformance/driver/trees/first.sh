# A tree with one of everything that a snapshot could lose.
set -e
umask 022
mkdir /tree && cd /tree
echo plain > plain
ln plain hard
mkdir -p far/away && ln plain far/away/hard
printf x > setuid && chmod 4755 setuid
printf x > setgid && chmod 2750 setgid
mkdir sticky && chmod 1777 sticky
printf x > locked && chmod 000 locked
mkdir shut && echo in > shut/in && chmod 000 shut
ln -s nowhere dangling
ln -s /etc/passwd absolute
ln -s ../tree/plain relative
mkfifo fifo
truncate -s 8M sparse
printf middle | dd of=sparse bs=1 seek=4194304 conv=notrunc 2>/dev/null
seq 1 200000 > large
: > nothing
mkdir empty
echo x > "$(printf 'line\nfeed')"
echo x > ' two  spaces '
echo x > "$(printf 'odd-\377\376')"
echo x > -dash
echo x > 'star*\'
mkdir replaced && echo old > replaced/old && echo old > replaced/both
mkdir -p turned/deep && echo x > turned/deep/file
echo x > becomes-directory
mkdir moved && echo x > moved/file
echo x > doomed
echo x > chmodded
echo x > grows
touch -h -d '2001-02-03T04:05:06Z' dangling
touch -d '1985-10-26T01:21:00.123456789Z' setuid far fifo nothing
