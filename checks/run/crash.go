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

// One crash of a worker inside the driver's library does not prove a fault of the node: the library
// may be in the middle of an update, or have a bug that one GPU's answer triggers. If the library
// crashes in every run, no job can use the GPUs. The state directory counts these runs; a reboot or
// another driver resets the count.

// crashesFail is the number of consecutive runs with a crash after which the node is faulty.
const crashesFail = 3

// crashes is the content of the file.
type crashes struct {
	Boot   string `json:"boot"`
	Driver string `json:"driver"` // the text of /proc/driver/nvidia/version
	Runs   int    `json:"runs"`   // consecutive runs with a crash
}

// inLibrary reports whether the library ended a worker of NVML's lane. It did not if a person or
// the kernel killed the worker, or if memory ran out.
func (c *client) inLibrary(doing string) bool {
	switch {
	case !c.hasDied() || c.lane != checks.NVML || !strings.HasPrefix(doing, "nvml"):
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

// countCrash adds this run to the consecutive runs with a crash and returns their number, 0 if the
// run has no memory. It ignores runs of a person, and runs of jobs because many jobs may start
// while a library is being updated.
func countCrash(p *Pool) int {
	p.mu.Lock()
	root, ignored, again := p.vars.Root, p.vars.DryRun || p.vars.Job != nil, p.crashed
	p.crashed = true
	p.mu.Unlock()
	var past crashes
	data, err := p.Load(wire.CrashFile)
	if err != nil {
		return 0
	}
	now := crashes{Boot: readCrashText(p, filepath.Join("/", root, "proc/sys/kernel/random/boot_id")), Driver: readCrashText(p, filepath.Join("/", root, "proc/driver/nvidia/version"))}
	if json.Unmarshal(data, &past) == nil && past.Boot == now.Boot && past.Driver == now.Driver && past.Runs > 0 {
		now.Runs = past.Runs
	}
	if !again || now.Runs == 0 {
		now.Runs = min(now.Runs+1, crashesFail)
	}
	if !ignored && !again && now != past {
		if data, err = json.Marshal(now); err == nil {
			err = p.Save(wire.CrashFile, data)
		}
		if err != nil {
			return 0
		}
	}
	return now.Runs
}

// readCrashText reads a small file of the kernel, "" if it cannot.
func readCrashText(p *Pool, path string) string {
	o := p.Call(context.Background(), p.chooseIdleLane(), &wire.Request{Op: wire.OpRead, Path: path, Line: "read " + path}, stateLimit)
	f, err := o.File("read " + path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(f.Data))
}

// EndCrashes resets the count of crashes if the library has answered in this run. If the write
// fails, the next run tries again.
func EndCrashes(p *Pool) {
	p.mu.Lock()
	over := p.answered && !p.crashed && !p.vars.DryRun
	p.mu.Unlock()
	p.state.mu.Lock()
	over = over && p.state.crashes
	p.state.mu.Unlock()
	if over {
		_ = p.Save(wire.CrashFile, nil)
	}
}
