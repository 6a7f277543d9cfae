package run

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// A worker that crashes inside the driver's library says nothing of the node: a library
// may be in the middle of an update, or have a bug that one GPU's answer triggers. If it
// crashes in each run, no job can use the GPUs. The state directory counts these runs; a
// reboot and another driver begin the count anew.

// crashesFail is the number of runs in a row from which a crash is a fault of the node.
const crashesFail = 3

// crashes is the content of the file.
type crashes struct {
	Boot   string `json:"boot"`
	Driver string `json:"driver"` // the text of /proc/driver/nvidia/version
	Runs   int    `json:"runs"`   // in a row
}

// inLibrary reports whether a worker of NVML's lane died of its library. A process that
// a person or the kernel has killed, or that lacked memory, did not.
func (c *client) inLibrary(doing string) bool {
	select {
	case <-c.done:
	default:
		return false
	}
	switch {
	case c.lane != checks.NVML || !strings.HasPrefix(doing, "nvml"):
		return false
	case c.end.Signaled():
		switch c.end.Signal() {
		case syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGABRT, syscall.SIGILL, syscall.SIGFPE, syscall.SIGTRAP, syscall.SIGSYS:
			return true
		}
		return false
	}
	said := c.stderr.last()
	return !strings.Contains(said, "memory") && !strings.Contains(said, "pthread_create")
}

// countCrash adds this run to those that have crashed in a row, and returns their
// number; 0 if the run has no memory. A run of a person does not count, nor does that of a
// job: many jobs may begin while a library is updated.
func countCrash(p *Pool) int {
	p.mu.Lock()
	root, hold, again := p.vars.Root, p.vars.Hold || p.vars.Job.Value != nil, p.crashed
	p.crashed = true
	p.mu.Unlock()
	var past crashes
	data, err := p.Load(wire.CrashFile)
	if err != nil {
		return 0
	}
	now := crashes{Boot: crashText(p, filepath.Join("/", root, "proc/sys/kernel/random/boot_id")), Driver: crashText(p, filepath.Join("/", root, "proc/driver/nvidia/version"))}
	if json.Unmarshal(data, &past) == nil && past.Boot == now.Boot && past.Driver == now.Driver && past.Runs > 0 {
		now.Runs = past.Runs
	}
	if !again || now.Runs == 0 {
		now.Runs = min(now.Runs+1, crashesFail)
	}
	if !hold && !again && now != past {
		if data, err = json.Marshal(now); err == nil {
			err = p.Save(wire.CrashFile, data)
		}
		if err != nil {
			return 0
		}
	}
	return now.Runs
}

// crashText reads a small file of the kernel's, "" if it cannot.
func crashText(p *Pool, path string) string {
	o := p.Call(context.Background(), p.idleLane(), &wire.Request{Op: wire.OpRead, Path: path, Line: "read " + path}, stateLimit)
	f, err := o.File("read " + path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(f.Data))
}

// EndCrashes forgets the crashes of earlier runs, if the library has answered in this one.
// What cannot be written is tried again by the next run.
func EndCrashes(p *Pool) {
	p.mu.Lock()
	over := p.answered && !p.crashed && !p.vars.Hold
	p.mu.Unlock()
	p.state.mu.Lock()
	over = over && p.state.crashes
	p.state.mu.Unlock()
	if over {
		_ = p.Save(wire.CrashFile, nil)
	}
}
