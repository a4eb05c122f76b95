# Extracts PyTorch's allocator and its headers from a wheel on PyPI, of which it reads
# only the parts that it needs: wheel.py BEGINNING-OF-NAME FOLDER
import io
import json
import sys
import urllib.request
import zipfile

begins, folder = sys.argv[1:]
index = urllib.request.Request("https://pypi.org/simple/torch/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
files = json.load(urllib.request.urlopen(index))["files"]
url = next(f["url"] for f in files if f["filename"].startswith(begins) and "linux" in f["filename"] and "x86_64" in f["filename"])


def part(first, last):
    return urllib.request.urlopen(urllib.request.Request(url, headers={"Range": "bytes=%d-%d" % (first, last)}))


class Remote(io.RawIOBase):
    def __init__(self):
        self.at, self.size = 0, int(part(0, 0).headers["Content-Range"].split("/")[1])

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=0):
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def tell(self):
        return self.at

    def readinto(self, buffer):
        n = min(len(buffer), self.size - self.at)
        if n > 0:
            buffer[:n] = part(self.at, self.at + n - 1).read()
            self.at += n
        return max(n, 0)


wheel = zipfile.ZipFile(io.BufferedReader(Remote(), 1 << 20))
for name in wheel.namelist():
    if name.startswith(("torch/lib/libc10", "torch/include/c10/", "torch/include/torch/headeronly/")):
        wheel.extract(name, folder)
