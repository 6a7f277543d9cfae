package slurm

import (
	"fmt"
	"strings"
)

// Role is the starter of the run. It determines which actions are allowed: a prolog or an epilog
// checks only one job's part of the node.
type Role int

// The roles.
const (
	Manual      Role = iota // a user, cron, or a job's own script
	HealthCheck             // slurmd's HealthCheckProgram
	Prolog                  // slurmd's Prolog
	Epilog                  // slurmd's Epilog
	Monitor                 // nhc-gpu monitor, after an event
)

var roleNames = [...]string{"manual", "healthcheck", "prolog", "epilog", "monitor"}

// MonitorContext is SLURM_SCRIPT_CONTEXT of the runs that nhc-gpu monitor starts.
const MonitorContext = "nhc-gpu-monitor"

// AroundJob reports whether the run is before or after a job.
func (r Role) AroundJob() bool { return r == Prolog || r == Epilog }

func (r Role) String() string {
	if r < Manual || r > Monitor {
		return fmt.Sprintf("role %d", int(r))
	}
	return roleNames[r]
}

// RoleOf reads the role from the environment. slurmd marks prolog and epilog by
// SLURM_SCRIPT_CONTEXT; it gives its HealthCheckProgram SLURMD_NODENAME and no job (tested with
// 22.05, 24.11 and 26.05).
func RoleOf(env func(string) string) Role {
	switch env("SLURM_SCRIPT_CONTEXT") {
	case "prolog_slurmd":
		return Prolog
	case "epilog_slurmd":
		return Epilog
	case MonitorContext:
		return Monitor
	case "":
		if env("SLURMD_NODENAME") != "" && env("SLURM_JOB_ID") == "" {
			return HealthCheck
		}
	}
	return Manual
}

// isNodeName reports whether a word can be a node's name on a command line and a file name: without
// brackets or commas, which would make it a list of nodes.
func isNodeName(name string) bool {
	if len(name) == 0 || len(name) > 255 {
		return false
	}
	for i, c := range []byte(name) {
		alnum := c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

// NodeName returns the name of this node in Slurm: SLURMD_NODENAME if slurmd set it (several slurmd
// can share a host), else the host name up to its first dot.
func NodeName(env func(string) string, hostname string) (string, error) {
	if name := env("SLURMD_NODENAME"); isNodeName(name) {
		return name, nil
	}
	short, _, _ := strings.Cut(hostname, ".")
	if !isNodeName(short) {
		return "", fmt.Errorf("cannot determine the name of this node: host name %q: want letters, digits, and - or _ after the first", hostname)
	}
	return short, nil
}
