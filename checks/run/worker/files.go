package worker

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// These functions read and write files for the supervisor.

// maxRead bounds the read of a configuration file, bytes, as conf.MaxSize. A larger file is reported by
// its size.
const maxRead = 2 << 20

// readFile reads a file that a site names. It opens the file before it calls stat, so that both see
// the same file, and does not block on a fifo.
func readFile(path string) *wire.Response {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return &wire.Response{File: &wire.FileInfo{Missing: true, Path: makeAbsolute(path)}}
	}
	if err != nil {
		return &wire.Response{Err: formatPathError("read", path, err)}
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return &wire.Response{Err: formatPathError("stat", path, err)}
	}
	info := describeFile(st)
	if !st.Mode().IsRegular() {
		return &wire.Response{File: info}
	}
	info.Path = resolvePlace(f)
	data, err := io.ReadAll(io.LimitReader(f, maxRead))
	if err != nil {
		return &wire.Response{Err: formatPathError("read", path, err)}
	}
	return &wire.Response{File: info, Data: data}
}

// resolvePlace returns the path of an open file without links. The kernel answers from memory, so no
// file system can block it.
func resolvePlace(f *os.File) string {
	if place, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err == nil && strings.HasPrefix(place, "/") {
		return place
	}
	return makeAbsolute(f.Name())
}

func makeAbsolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func describeFile(st fs.FileInfo) *wire.FileInfo {
	info := &wire.FileInfo{Mode: st.Mode(), Size: st.Size()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		info.UID = sys.Uid
	}
	return info
}

func appendFile(w *worker, req *wire.Request) *wire.Response {
	resp := &wire.Response{}
	if req.Most > 0 {
		if err := appendBounded(req.Path, req.Data, req.Most); err != nil {
			return &wire.Response{Err: formatPathError("write", req.Path, err)}
		}
		return resp
	}
	log, ok := w.logs[req.Path]
	if !ok {
		var err error
		if log, err = openLog(req.Path, req.Trunc); err != nil {
			return &wire.Response{Err: formatPathError("open", req.Path, err)}
		}
		w.logs[req.Path] = log
	}
	if log.shared {
		resp.File = &wire.FileInfo{Path: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), log.Fd())}
	}
	if len(req.Data) > 0 {
		if _, err := log.Write(req.Data); err != nil {
			return &wire.Response{Err: formatPathError("write", req.Path, err)}
		}
	}
	return resp
}

// formatPathError formats err as "verb path: why", however err was wrapped.
func formatPathError(verb, path string, err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return fmt.Sprintf("%s %s: %v", verb, path, err)
}
