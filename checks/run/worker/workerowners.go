package worker

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/jobs"
)

// The samples are root's. The worker that samples jobs answers the user of a job at a socket: the kernel says
// who asks, and no file has to change its owner. docs/security.md describes the rules.

// owners is the socket for the users of jobs. Any user may connect to it, and must not hold up or load the worker.
type owners struct {
	env  *checks.Env
	open chan struct{} // a place for each connection

	mu   sync.Mutex // one answer at a time
	last map[uint32]time.Time
}

const (
	// ownersOpen bounds the connections, ownersWait how long one may take, ownersPause is the time between two answers to
	// a user.
	ownersOpen  = 4
	ownersWait  = 5 * time.Second
	ownersPause = time.Second
	// maxQuestion and maxAnswer bound the texts, bytes.
	maxQuestion = 64
	maxAnswer   = 8 << 20
)

// ownersDir returns the directory of the sockets beside that of the states.
func ownersDir(state string) string { return filepath.Dir(state) + "-jobs" }

// serveOwners opens the socket, and answers until the process ends. Without a state directory it does nothing.
func serveOwners(w *worker) error {
	if w.vars.State == "" {
		return nil
	}
	dir := ownersDir(w.vars.State)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("open the socket for users: %w", err)
	}
	info, err := os.Lstat(dir)
	if err == nil && !info.IsDir() {
		err = errors.New("not a directory")
	}
	if err == nil {
		err = checkOwner(info)
	}
	if err == nil {
		err = os.Chmod(dir, 0o755) // with any umask
	}
	if err != nil {
		return fmt.Errorf("open the socket for users in %s: %w", dir, err)
	}
	path := filepath.Join(dir, filepath.Base(w.vars.State))
	_ = os.Remove(path) // of an earlier worker
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("open the socket for users: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return fmt.Errorf("open the socket for users: %w", err)
	}
	host := w.host.Apart()
	host.SetPast(w.vars.Past, w.vars.Spare)
	host.SetState(w.vars.State)
	o := &owners{env: &checks.Env{Host: host}, open: make(chan struct{}, ownersOpen), last: map[uint32]time.Time{}}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case o.open <- struct{}{}:
				go func() {
					defer func() { <-o.open }()
					o.serve(conn)
				}()
			default:
				conn.Close()
			}
		}
	}()
	return nil
}

// serve answers one question: the number of a job, and "hours" for 24 hours.
func (o *owners) serve(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(ownersWait))
	user, err := peerOf(conn)
	if err != nil {
		return
	}
	line, err := bufio.NewReader(io.LimitReader(conn, maxQuestion)).ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) == 0 || strings.Trim(words[0], "0123456789") != "" {
		return
	}
	data, err := o.answer(words, user)
	switch {
	case errors.Is(err, errBusy):
		return
	case err != nil || data == nil:
		data = []byte("null") // why is for root to know
	}
	_, _ = conn.Write(append(data, '\n'))
}

// errBusy is the answer to a user who asks too often. It has no text, like that to a connection too many.
var errBusy = errors.New("ask nhc-gpu monitor: it is busy, ask again")

// answer returns the samples of a user's job.
func (o *owners) answer(words []string, user uint32) (data []byte, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("internal error: %v", p)
		}
	}()
	if user != 0 && time.Since(o.last[user]) < ownersPause {
		return nil, errBusy
	}
	if len(o.last) > 1024 {
		clear(o.last)
	}
	o.last[user] = time.Now()
	return extractSamples(o.env, words, user)
}

// extractSamples returns the samples of a job for a user as JSON, nil if there are none.
func extractSamples(env *checks.Env, words []string, user uint32) ([]byte, error) {
	if len(words) == 0 {
		return nil, errors.New("read the samples of a job: no job")
	}
	e, err := jobs.ExtractSamples(env, words[0], user, len(words) > 1 && words[1] == "hours")
	if err != nil || e == nil {
		return nil, err
	}
	data, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("read the samples of job %s: %w", words[0], err)
	}
	return data, nil
}

// peerOf returns the user at the other end of a socket, as the kernel knows it.
func peerOf(conn net.Conn) (uid uint32, err error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, errors.New("not a local socket")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if controlErr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); controlErr != nil {
		err = controlErr
	}
	if err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

// askForOwn asks the monitor of a node, or those of all nodes on this machine, for a job of this user. It believes
// root alone.
func askForOwn(dir, node string, words []string) ([]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("ask nhc-gpu monitor: %w", err)
	}
	if at := slices.IndexFunc(entries, func(e fs.DirEntry) bool { return e.Name() == node }); at >= 0 {
		entries = entries[at : at+1]
	}
	for _, entry := range entries[:min(len(entries), 64)] {
		data, askErr := askSocket(filepath.Join(dir, entry.Name()), words)
		for end := time.Now().Add(2 * ownersWait); errors.Is(askErr, errBusy) && time.Now().Before(end); {
			time.Sleep(ownersPause / 4)
			data, askErr = askSocket(filepath.Join(dir, entry.Name()), words)
		}
		switch {
		case askErr != nil:
			err = askErr
		case data != nil:
			return data, nil
		}
	}
	return nil, err
}

func askSocket(path string, words []string) ([]byte, error) {
	conn, err := net.DialTimeout("unix", path, ownersWait)
	if err != nil {
		return nil, fmt.Errorf("ask nhc-gpu monitor: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * ownersWait))
	if user, err := peerOf(conn); err != nil || user != 0 && user != uint32(os.Geteuid()) {
		return nil, fmt.Errorf("ask nhc-gpu monitor: %s is not owned by root", path)
	}
	if _, err := fmt.Fprintf(conn, "%s\n", strings.Join(words, " ")); err != nil {
		return nil, fmt.Errorf("ask nhc-gpu monitor: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(conn, maxAnswer+1))
	switch text := strings.TrimSpace(string(data)); {
	case err != nil:
		return nil, fmt.Errorf("ask nhc-gpu monitor: %w", err)
	case text == "":
		return nil, errBusy
	case text == "null":
		return nil, nil
	}
	return data, nil
}
