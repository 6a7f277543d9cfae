package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file parses the output of perftest programs. The formats are those of 4.5 (Debian 12) and of
// 25.01 (Debian 13), which differ only in spaces and in the name of the unit 2^20 bytes a second:
// MB/sec, then MiB/sec.

// PerftestKind is the reason why there is no rate.
type PerftestKind int

// These are the reasons.
const (
	PerftestBroken     PerftestKind = iota // it ended with an error other than those below
	PerftestAbsent                         // there is no such program
	PerftestUnloadable                     // it lacks a shared library, or cannot be executed
	PerftestNoDevice                       // it does not find the RDMA device
	PerftestNoOption                       // it does not know an option: it is too old
	PerftestNoCUDA                         // it was built without CUDA
	PerftestCUDA                           // CUDA in it failed
	PerftestMemory                         // memory could not be registered with the device
	PerftestNoPort                         // no TCP port to listen at
	PerftestNoServer                       // no process listens on the port
	PerftestLink                           // the ports do not reach each other, or an address is missing
	PerftestTransfer                       // a transfer ended with an error
	PerftestHung                           // it did not end in time
	PerftestStopped                        // it was ended with the run
	PerftestGarbled                        // what it printed has no rate in it
)

// PerftestError is why there is no rate.
type PerftestError struct {
	Kind   PerftestKind
	Text   string // the program's own text, on one line
	Killed bool   // a signal ended it
}

func (e *PerftestError) Error() string { return e.Text }

// perftestWords are texts in its output or standard error; the first that matches counts. They are
// in order of significance, because one error causes others.
var perftestWords = []struct {
	text string
	kind PerftestKind
}{
	{"error while loading shared libraries", PerftestUnloadable},
	{"unrecognized option '--use_cuda", PerftestNoCUDA}, // 4.5 of Debian
	{"Unsupported memory type", PerftestNoCUDA},         // 25.01 of Debian
	{"unrecognized option", PerftestNoOption},
	{"invalid option", PerftestNoOption},
	{"There are no available device(s) that support CUDA", PerftestCUDA},
	{"cuInit(0) returned", PerftestCUDA},
	{"cuDeviceGetByPCIBusId failed", PerftestCUDA},
	{"cuDeviceGetCount() returned", PerftestCUDA},
	{"No such device ID", PerftestCUDA},
	{"cuCtxCreate() error", PerftestCUDA},
	{"cuMemAlloc error", PerftestCUDA},
	{"DMA-BUF is not supported on this GPU", PerftestMemory},
	{"cuMemGetHandleForAddressRange error", PerftestMemory},
	{"Couldn't init GPU context", PerftestCUDA},
	{"Couldn't allocate MR", PerftestMemory},
	{"Couldn't listen to port", PerftestNoPort},
	{"Unable to find the Infiniband/RoCE device", PerftestNoDevice},
	{"Couldn't get context for the device", PerftestNoDevice},
	{"Completion with error at", PerftestTransfer},
	{"Failed status", PerftestTransfer},
	{"Unable to Connect the HCA's through the link", PerftestLink},
	{"Failed to modify QP", PerftestLink},
	{"Found Incompatibility issue with GID types", PerftestLink},
	{"Couldn't connect to", PerftestNoServer},
}

// parseFault returns the error of an ended program, nil if it succeeded.
func parseFault(x probe.Exit) *PerftestError {
	fault := func(kind PerftestKind, format string, args ...any) *PerftestError {
		return &PerftestError{Kind: kind, Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case errors.Is(x.Err, fs.ErrNotExist) || x.Err != nil && x.Status == probe.NotFound:
		return fault(PerftestAbsent, "no such program")
	case x.Err != nil:
		return fault(PerftestUnloadable, "%s", x.Err)
	}
	text := string(x.Errors) + "\n" + string(x.Output)
	for _, w := range perftestWords {
		if at := strings.Index(text, w.text); at >= 0 {
			return fault(w.kind, "%s", cutLineAt(text, at))
		}
	}
	switch {
	case x.Stuck:
		return fault(PerftestHung, "it did not end when it was killed")
	case x.TimedOut:
		return fault(PerftestHung, "it did not end")
	case x.Status >= probe.Signalled && x.Status < probe.Signalled+65:
		e := fault(PerftestBroken, "it was ended by %s", unix.SignalName(unix.Signal(x.Status-probe.Signalled)))
		e.Killed = true
		return e
	case x.Status != 0:
		return fault(PerftestBroken, "it ended with %d: %s", x.Status, cmp.Or(probe.LastLine(x.Errors), probe.LastLine(x.Output), "it said nothing"))
	}
	return nil
}

// cutLineAt returns the line from a position in a text on, shortened for a message.
func cutLineAt(text string, at int) string {
	line, _, _ := strings.Cut(text[at:], "\n")
	return probe.ShortLine(line)
}

// perftestColumn is the column of the average, of five.
const perftestColumn = 3

// parsePerftest finds the average in a report, in Gb/s. The table has a head, which names the unit,
// and one row, which begins with the size of the messages.
func parsePerftest(output []byte, size int64) (float64, error) {
	gbits, headed := false, false
	for line := range strings.SplitSeq(string(output), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "#bytes") {
			gbits, headed = strings.Contains(line, "BW average[Gb/sec]"), true
			if !gbits && !strings.Contains(line, "BW average[MB/sec]") && !strings.Contains(line, "BW average[MiB/sec]") {
				return 0, fmt.Errorf("its table has no average: %q", probe.ShortLine(line))
			}
			continue
		}
		words := strings.Fields(line)
		if !headed || len(words) == 0 || strings.HasPrefix(words[0], "---") {
			continue
		}
		if len(words) < 5 || words[0] != strconv.FormatInt(size, 10) {
			return 0, fmt.Errorf("a row of its table is not understood: %q", probe.ShortLine(line))
		}
		rate, err := strconv.ParseFloat(words[perftestColumn], 64)
		if err != nil || math.IsNaN(rate) || math.IsInf(rate, 0) || rate < 0 {
			return 0, fmt.Errorf("a rate in its table is not a number: %q", probe.ShortLine(line))
		}
		if !gbits {
			rate *= 8 * (1 << 20) / 1e9
		}
		return rate, nil
	}
	if headed {
		return 0, errors.New("its table has no row")
	}
	return 0, errors.New("it printed no table")
}

// parseLatency finds the typical latency, in µs, in a report of ib_write_lat -n. The names of its
// columns have their units; one row begins with the size of the messages.
func parseLatency(output []byte, size int64) (float64, error) {
	column := -1
	for line := range strings.SplitSeq(string(output), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "#bytes") {
			names := strings.Fields(strings.ReplaceAll(line, "% percentile", "%")) // one word each
			if column = slices.Index(names, "t_typical[usec]"); column < 0 {
				return 0, fmt.Errorf("its table has no typical latency: %q", probe.ShortLine(line))
			}
			continue
		}
		words := strings.Fields(line)
		if column < 0 || len(words) == 0 || strings.HasPrefix(words[0], "---") {
			continue
		}
		if len(words) <= column || words[0] != strconv.FormatInt(size, 10) {
			return 0, fmt.Errorf("a row of its table is not understood: %q", probe.ShortLine(line))
		}
		latency, err := strconv.ParseFloat(words[column], 64)
		if err != nil || math.IsNaN(latency) || math.IsInf(latency, 0) || latency < 0 {
			return 0, fmt.Errorf("a latency in its table is not a number: %q", probe.ShortLine(line))
		}
		return latency, nil
	}
	if column >= 0 {
		return 0, errors.New("its table has no row")
	}
	return 0, errors.New("it printed no table")
}
