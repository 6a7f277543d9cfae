// Package probe is the only place that reads hardware or the operating system.
//
// Every source is one file. All of them read below one root directory, which
// is "/" on a node and a small tree of files in a test. Any of these calls may
// block for ever on a sick node (a dead NFS server, a wedged driver): they are
// made in worker processes only.
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

// Host reads one node. It caches what it reads for its life, as LBNL NHC does
// for a run: two checks of one run never see two different mount tables.
//
// Several goroutines of a check may ask it at once; a source is then read by one of them,
// and the others wait. Its settings (Set..., Only..., Guard...) are made by one goroutine,
// before the first check and between two checks. What it returns is shared: it is read,
// never changed. A value of [Kept] is its check's to guard.
type Host struct {
	root string

	mu         sync.Mutex
	cache      map[string]any // guarded by mu
	unanswered []string       // see Unanswered; guarded by mu
	blocked    atomic.Bool    // see Blocked

	environ []string // of commands; nil: this process's
	passwd  string   // see SetPasswd
	past    string   // see SetPast
	spare   []string // see SetPast

	libraries map[string]string // see SetLibraries
	stuck     []string          // see SetStuck
}

// NewHost reads the node whose file system begins at root; "" and "/" are this machine.
func NewHost(root string) *Host {
	if root == "" {
		root = "/"
	}
	return &Host{root: root, cache: map[string]any{}}
}

// Apart returns a Host of the same node for another goroutine. It remembers nothing.
func (h *Host) Apart() *Host {
	return &Host{root: h.root, environ: h.environ, cache: map[string]any{}}
}

// SetEnviron gives the environment of the commands that are run from now on.
// Its PATH is where their programs are looked for.
func (h *Host) SetEnviron(env []string) { h.environ = env }

// Path is where the absolute path p of the node lies on this machine.
func (h *Host) Path(p string) string {
	if !h.Recorded() {
		return p
	}
	return filepath.Join(h.root, p)
}

// Recorded says whether the node is a tree of files, and not this machine.
func (h *Host) Recorded() bool { return h.root != "/" }

// Library returns the setting that names a vendor's library, "" if it is not set.
func (h *Host) Library(setting string) string { return h.libraries[setting] }

// Past returns the directory for what earlier runs have kept, "" if there is none.
func (h *Host) Past() string { return h.past }

// ErrRecorded says that a recorded node is to be changed.
var ErrRecorded = errors.New("a recorded node cannot be changed")

// firstPIDs is the name of the kernel's first PID namespace, whose numbers drivers use.
const firstPIDs = "pid:[4026531836]" // PROC_PID_INIT_INO of include/linux/proc_ns.h

// InContainer reports whether this is another PID namespace than the kernel's first: /proc
// does not show the node's own processes. A namespace that cannot be read is the first.
func (h *Host) InContainer() bool {
	name, err := os.Readlink(h.Path("/proc/self/ns/pid"))
	return err == nil && name != firstPIDs
}

// SetStuck says which calls have hung a moment ago, or hang still, in the words that
// were given to doing: "read /sys/class/infiniband/mlx5_3". The device is not asked
// again, so that one that blocks costs a run one timeout, and not one of each check.
func (h *Host) SetStuck(calls []string) { h.stuck = calls }

// ErrStuck says that a device was not asked, since it has not answered another check.
var ErrStuck = errors.New("not asked: it has just blocked another check")

// StuckAt is ErrStuck if a directory, or something below it, is what a call hangs in.
func (h *Host) StuckAt(dir string) error {
	for _, call := range h.stuck {
		if path, ok := strings.CutPrefix(call, "read "); ok && (path == dir || strings.HasPrefix(path, dir+"/")) {
			return &fs.PathError{Op: "read", Path: dir, Err: ErrStuck}
		}
	}
	return nil
}

// Unanswered returns the calls in the background that did not come back, in the words of
// [Host.SetStuck].
func (h *Host) Unanswered() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.unanswered)
}

func (h *Host) addUnanswered(call string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unanswered = append(h.unanswered, call)
}

// errNoAnswer says that a file system does not answer.
var errNoAnswer = errors.New("no answer")

// inTime runs f in the background and reports whether it ended within a limit.
func inTime(limit time.Duration, f func()) bool {
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

// Cached is what was read for a key, and how that failed.
type Cached[T any] struct {
	Value T
	Err   error
}

// slot is what is read for a key. Who asks while it is being read waits.
type slot[T any] struct {
	once  sync.Once
	value atomic.Pointer[Cached[T]]
}

// Once runs read the first time it is asked for key, and answers from memory after that.
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

// Remembered is what was read for a key, if it was; it waits for nothing.
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

// Remember keeps what was read for a key.
func Remember[T any](h *Host, key string, value T, err error) {
	s := new(slot[T])
	s.value.Store(&Cached[T]{value, err})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cache[key] = s
}

func (h *Host) forget(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.cache, key)
}

// Kept is what a check remembers from one line of the configuration to the
// next: a value that lives as long as the Host. It is the zero value when the
// key is first asked for.
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

// Lazily compiles an expression when it is first needed: every process of a run would
// pay for it at its start.
func Lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// Getenv is a variable of the environment that commands get, "" if it is not set.
func (h *Host) Getenv(name string) string {
	for _, e := range slices.Backward(Environment(h, nil)) {
		if key, value, ok := strings.Cut(e, "="); ok && key == name {
			return value
		}
	}
	return ""
}
