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
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// The samples are root's. The worker that samples jobs answers the user of a job at a socket: the kernel says
// who asks, and no file has to change its owner. docs/security.md describes the rules.

// owners is the socket for the users of jobs. Any user may connect to it, and must not hold up or load the worker.
type owners struct {
	env func() *checks.Env // of an answer: what one has read must not be the next one's

	mu   sync.Mutex // one answer at a time
	last map[uint32]time.Time

	places sync.Mutex
	open   map[uint32]*place // of the users with a connection
}

// place is that of a connection.
type place struct {
	conn  net.Conn
	since time.Time
	asked bool
}

const (
	// ownersOpen bounds the connections; a user has one at a time. A further one ends the oldest that has not asked.
	// ownersAsk and ownersWait bound the times for a question and an answer, ownersPause is the time between two
	// answers to a user, and after a connection that failed. strangersPause follows the question of one who has no such
	// job: that is one pace for all of them, since a user can have many UIDs.
	ownersOpen     = 64
	ownersAsk      = time.Second
	ownersWait     = 5 * time.Second
	ownersPause    = time.Second
	strangersPause = 20 * time.Millisecond
	// ownersSilence is how long a directory that has not answered is not asked again: each time leaves a thread behind.
	ownersSilence = 10 * time.Minute
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
	node := ownersNode{Host: w.host.Apart(), vars: w.vars}
	env := func() *checks.Env { return &checks.Env{Host: node.next()} }
	o := &owners{env: env, last: map[uint32]time.Time{}, open: map[uint32]*place{}}
	go o.accept(l)
	return nil
}

// ownersNode makes a Host for each answer. It is for one goroutine at a time.
type ownersNode struct {
	*probe.Host
	vars  wire.Vars
	last  *probe.Host
	stuck []string // the calls that have left a thread behind
	since time.Time
}

// next returns the Host of the next answer. For a while it does not repeat calls that have left a thread behind.
func (n *ownersNode) next() *probe.Host {
	if n.last != nil && len(n.last.Unanswered()) > 0 {
		n.stuck, n.since = n.last.Unanswered(), time.Now()
	}
	n.last = n.Apart()
	n.last.SetPast(n.vars.Past, n.vars.Spare)
	n.last.SetState(n.vars.State)
	if time.Since(n.since) < ownersSilence {
		n.last.SetStuck(n.stuck)
	}
	return n.last
}

// accept serves connections until the socket is closed. Other errors pass: that of too many open files, for example.
func (o *owners) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(ownersPause)
			continue
		}
		user, err := peerOf(conn)
		p := (*place)(nil)
		if err == nil {
			p = o.enter(conn, user)
		}
		if p == nil {
			conn.Close()
			continue
		}
		go func() {
			defer o.leave(p, user)
			o.serve(p, user)
		}()
	}
}

// enter gives a user a place, unless the user has one. If there is none, the oldest connection that has not asked loses
// its own: a user can have many UIDs, subordinate ones.
func (o *owners) enter(conn net.Conn, user uint32) *place {
	o.places.Lock()
	defer o.places.Unlock()
	if o.open[user] != nil {
		return nil
	}
	if len(o.open) >= ownersOpen {
		oldest := user
		for other, p := range o.open {
			if !p.asked && (oldest == user || p.since.Before(o.open[oldest].since)) {
				oldest = other
			}
		}
		if oldest == user {
			return nil
		}
		o.open[oldest].conn.Close()
		delete(o.open, oldest)
	}
	p := &place{conn: conn, since: time.Now()}
	o.open[user] = p
	return p
}

func (o *owners) leave(p *place, user uint32) {
	o.places.Lock()
	defer o.places.Unlock()
	if o.open[user] == p {
		delete(o.open, user)
	}
}

// serve answers one question of a user: the number of a job, and "hours" for 24 hours.
func (o *owners) serve(p *place, user uint32) {
	conn := p.conn
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(ownersAsk))
	line, err := bufio.NewReader(io.LimitReader(conn, maxQuestion)).ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) == 0 || strings.Trim(words[0], "0123456789") != "" {
		return
	}
	o.places.Lock()
	p.asked = true
	o.places.Unlock()
	data, err := o.answer(words, user)
	_ = conn.SetDeadline(time.Now().Add(ownersWait))
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
	data, err = extractSamples(o.env(), words, user)
	if errors.Is(err, jobs.ErrStranger) {
		time.Sleep(strangersPause)
	}
	return data, err
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
	_, err = fmt.Fprintf(conn, "%s\n", strings.Join(words, " "))
	var data []byte
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(conn, maxAnswer+1))
	}
	switch text := strings.TrimSpace(string(data)); {
	case err == nil && text == "", errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET): // no place
		return nil, errBusy
	case err != nil:
		return nil, fmt.Errorf("ask nhc-gpu monitor: %w", err)
	case text == "null":
		return nil, nil
	}
	return data, nil
}
