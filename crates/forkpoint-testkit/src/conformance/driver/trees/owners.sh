# Files of somebody else, with modes that `chown` would have cleared.
set -e
mkdir /owned && cd /owned
mkdir directory && echo x > file && ln -s file link && mkfifo fifo
chown 12:34 directory file fifo && chown -h 12:34 link
chmod 4711 file && chmod 2770 directory
