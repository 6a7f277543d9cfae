// Package probe reads, with the packages below it, the hardware and the operating system for checks.
//
// Every source is one file. All of them read below one root directory, which is "/" on a node and a
// small tree of files in a test. Any of these calls can block forever on a faulty node (a dead NFS
// server, a driver that hangs), so only worker processes make them.
package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Host reads one node. It caches all reads for its life, as LBNL NHC does for a run: two checks of
// one run never see two different mount tables.
//
// It is safe for concurrent use by the goroutines of a check; one of them reads a source, and the
// others wait. One goroutine makes its settings (Set..., Only..., Guard...), before the first check
// and between two checks. Results are shared: never change them. A check guards its own values of
// [Kept].
type Host struct {
	root string

	mu         sync.Mutex
	cache      map[string]any   // guarded by mu
	unanswered []string         // see Unanswered; guarded by mu
	silent     map[string]error // directories of files that this process does not use any more, and why; guarded by mu
	blocked    atomic.Bool      // see Blocked

	environ []string          // of commands; nil: this process's
	passwd  string            // see SetPasswd
	past    string            // see SetPast
	spare   []string          // see SetPast
	until   time.Time         // see SetUntil
	unread  []string          // files of the memory that could not be read; guarded by mu
	history map[string][]byte // files as they are in the memory directory, by this run; guarded by mu
	state   string            // see SetState

	libraries map[string]string // see SetLibraries
	stuck     []string          // see SetStuck
	doing     func(string)      // see SetDoing
}

// NewHost returns the node whose file system begins at root; "" and "/" are this machine.
func NewHost(root string) *Host {
	if root == "" {
		root = "/"
	}
	return &Host{root: root, cache: map[string]any{}}
}

// Apart returns a Host of the same node for another goroutine, with an empty cache.
func (h *Host) Apart() *Host {
	return &Host{root: h.root, environ: h.environ, cache: map[string]any{}}
}

// SetEnviron sets the environment of commands from now on. Their programs are searched in its PATH.
func (h *Host) SetEnviron(env []string) { h.environ = env }

// Path returns the path on this machine of the absolute path p of the node.
func (h *Host) Path(p string) string {
	if !h.Recorded() {
		return p
	}
	return filepath.Join(h.root, p)
}

// Recorded reports whether the node is a tree of files, and not this machine.
func (h *Host) Recorded() bool { return h.root != "/" }

// Library returns the setting that names a vendor's library, "" if it is not set.
func (h *Host) Library(setting string) string { return h.libraries[setting] }

// SetState sets the state directory of the runs on this machine, "" for none.
func (h *Host) SetState(dir string) { h.state = dir }

// State returns the state directory, "" for none.
func (h *Host) State() string { return h.state }

// Past returns the directory with the data of earlier runs, "" if there is none.
func (h *Host) Past() string { return h.past }

// ErrRecorded means that a caller tried to change a recorded node.
var ErrRecorded = errors.New("a recorded node cannot be changed")

// firstPIDs is the name of the kernel's first PID namespace, whose numbers drivers use.
const firstPIDs = "pid:[4026531836]" // PROC_PID_INIT_INO of include/linux/proc_ns.h

// InContainer reports whether this process is in another PID namespace than the kernel's first, so
// that /proc does not show the node's own processes. It assumes the first if the namespace cannot
// be read.
func (h *Host) InContainer() bool {
	name, err := os.Readlink(h.Path("/proc/self/ns/pid"))
	return err == nil && name != firstPIDs
}

// SetStuck sets the calls that have blocked another check, in the form that doing gets: "read
// /sys/class/infiniband/mlx5_3". Later checks skip these devices, so that a blocking device costs a
// run one timeout, and not one for each check.
func (h *Host) SetStuck(calls []string) {
	h.stuck = calls
	setLocked(h.Path("/proc"), calls)
}

// SetDoing sets the function that announces the worker's next call.
func (h *Host) SetDoing(doing func(string)) { h.doing = doing }

// A loop announces ScanCall, at most once in paceEvery.
const (
	ScanCall  = "read /proc"
	paceEvery = 100 * time.Millisecond
)

// Pace returns a function that a loop over processes or their files calls at each. It announces from
// time to time that the loop goes on: users can make it long, which is no hang.
func (h *Host) Pace() func() {
	last := time.Now()
	return func() {
		if now := time.Now(); h.doing != nil && now.Sub(last) >= paceEvery {
			last = now
			h.doing(ScanCall)
		}
	}
}

// ErrStuck means that a device was skipped because it has blocked another check.
var ErrStuck = errors.New("skipped: this device already blocked another check")

// StuckAt returns ErrStuck if a call hangs in a directory or below it.
func (h *Host) StuckAt(dir string) error {
	for _, call := range h.stuck {
		if path, ok := strings.CutPrefix(call, "read "); ok && (path == dir || strings.HasPrefix(path, dir+"/")) {
			return &fs.PathError{Op: "read", Path: dir, Err: ErrStuck}
		}
	}
	return nil
}

// Unanswered returns the calls in the background that did not return, in the form of
// [Host.SetStuck].
func (h *Host) Unanswered() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.unanswered)
}

func (h *Host) addUnanswered(call string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Contains(h.unanswered, call) {
		h.unanswered = append(h.unanswered, call)
	}
}

// errNoAnswer means that a file system does not answer.
var errNoAnswer = errors.New("no answer")

// InTime runs f in the background and reports whether it ended within a limit. If not, this process cannot be used
// any more, since it can never end; call describes f.
func (h *Host) InTime(call string, limit time.Duration, f func()) bool {
	ended := runInTime(limit, f)
	if !ended {
		h.addUnanswered(call)
	}
	return ended
}

// runInTime runs f in the background and reports whether it ended within a limit.
func runInTime(limit time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		f()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

// Cached is the value of a key, or the error of reading it.
type Cached[T any] struct {
	Value T
	Err   error
}

// slot is the cache of one key. Concurrent readers wait for the first one.
type slot[T any] struct {
	once  sync.Once
	value atomic.Pointer[Cached[T]]
}

// Once calls read the first time for a key, and returns the cached result after that.
func Once[T any](h *Host, key string, read func() (T, error)) (T, error) {
	h.mu.Lock()
	s, ok := h.cache[key].(*slot[T])
	if !ok {
		s = new(slot[T])
		h.cache[key] = s
	}
	h.mu.Unlock()
	s.once.Do(func() {
		if s.value.Load() == nil {
			v, err := read()
			s.value.Store(&Cached[T]{v, err})
		}
	})
	c := s.value.Load()
	return c.Value, c.Err
}

// Uncache removes the cached result of a key: the next [Once] reads again.
func Uncache(h *Host, key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.cache, key)
}

// Remembered returns the cached result of a key, if there is one, without waiting.
func Remembered[T any](h *Host, key string) (c Cached[T], ok bool) {
	h.mu.Lock()
	s, _ := h.cache[key].(*slot[T])
	h.mu.Unlock()
	if s == nil {
		return c, false
	}
	if v := s.value.Load(); v != nil {
		return *v, true
	}
	return c, false
}

// Remember caches a result for a key.
func Remember[T any](h *Host, key string, value T, err error) {
	s := new(slot[T])
	s.value.Store(&Cached[T]{value, err})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cache[key] = s
}

// Kept returns the value that a check keeps from one line of the configuration to the next. It
// lives as long as the Host, and is initially the zero value.
func Kept[T any](h *Host, key string) *T {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.cache["kept "+key].(*T)
	if !ok {
		v = new(T)
		h.cache["kept "+key] = v
	}
	return v
}

// Lazily compiles an expression when it is first needed, since every process of a run would
// otherwise compile it at its start.
func Lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// Getenv returns a variable of the environment of commands, "" if it is not set.
func (h *Host) Getenv(name string) string {
	for _, e := range slices.Backward(Environment(h)) {
		if key, value, ok := strings.Cut(e, "="); ok && key == name {
			return value
		}
	}
	return ""
}
