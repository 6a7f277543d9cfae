package rank

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/peer"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// faults assigns a fault to each error of a test between nodes. The first one that fits counts.
var faults = []struct {
	err   error
	fault sweep.Fault
}{
	{peer.ErrMTU, sweep.FaultMTU},
	{peer.ErrSilent, sweep.FaultSilent},
	{peer.ErrStranger, sweep.FaultRefused},
	{peer.ErrName, sweep.FaultRefused},
	{peer.ErrEnded, sweep.FaultLost},
	{context.DeadlineExceeded, sweep.FaultSilent},
	{unix.ECONNREFUSED, sweep.FaultRefused},
	{unix.ENETUNREACH, sweep.FaultRefused},
	{unix.EHOSTUNREACH, sweep.FaultSilent}, // no answer to ARP
	{unix.ETIMEDOUT, sweep.FaultSilent},
	{unix.ECONNRESET, sweep.FaultLost},
	{unix.EPIPE, sweep.FaultLost},
}

// classify returns the fault of an error.
func classify(err error) sweep.Fault {
	if err == nil {
		return sweep.FaultNone
	}
	if wrong := new(peer.WrongError); errors.As(err, &wrong) {
		return sweep.FaultWrong
	}
	for _, f := range faults {
		if errors.Is(err, f.err) {
			return f.fault
		}
	}
	return sweep.FaultError
}

// failed adds an error to a result. The node of the other end is blamed if it did not answer.
func failed(r sweep.Result, err error, other string) sweep.Result {
	if err == nil {
		return r
	}
	r.Fault, r.Text = classify(err), err.Error()
	switch r.Fault {
	case sweep.FaultSilent, sweep.FaultLost, sweep.FaultRefused:
		if other != "" && !errors.Is(err, peer.ErrName) && !errors.Is(err, unix.ENETUNREACH) {
			r.Blame = []string{other}
		}
	}
	return r
}
