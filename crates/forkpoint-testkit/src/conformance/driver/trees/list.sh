# All that must be equal in a copy. What a directory occupies is the file system's own business.
cd /tree && export LC_ALL=C TZ=UTC
find . -type d -print0 | sort -z | xargs -0 stat -c '%N %f %y'
find . ! -type d -print0 | sort -z | xargs -0 stat -c '%N %f %h %s %y'
find . -type f -print0 | sort -z | xargs -0 cksum
if test plain -ef hard && test plain -ef far/away/hard; then echo 'one file'; fi
if test $(( $(stat -c %b sparse) * 512 )) -lt "$(stat -c %s sparse)"; then echo 'holes'; fi
