# What layers find hard: deletions, replacements, moves, and changes of what lies below.
set -e
cd /tree
rm -r replaced && mkdir replaced && echo new > replaced/both
rm -r turned && echo file > turned
rm becomes-directory && mkdir becomes-directory && echo x > becomes-directory/file
mv moved elsewhere
rm doomed
chmod 640 chmodded
echo more >> grows
echo more >> large
rm relative && ln -s plain relative
rm nothing && mkdir -p new/deep/tree && echo x > new/deep/tree/file
touch -d '1999-12-31T23:59:59.987654321Z' replaced elsewhere/file new
