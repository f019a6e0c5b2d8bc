# In a copy: once more what was done below.
set -e
cd /tree
rm -r replaced && mkdir replaced && echo newest > replaced/old
echo back > doomed
chmod 700 shut && rm -r shut elsewhere
mv new old
