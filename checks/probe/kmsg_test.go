package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// said returns the sequence numbers and texts of a reading.
func said(t *testing.T, h *Host, from uint64) (list []string, end KernelLogEnd) {
	t.Helper()
	end, err := KernelLog(h, from, func(r KernelRecord) { list = append(list, fmt.Sprintf("%d %v %s", r.Seq, r.At, r.Text)) })
	if err != nil {
		t.Fatal(err)
	}
	return list, end
}

const recorded = `5,0,0,-;Linux version 6.8.0
6,1,5140900,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build
 SUBSYSTEM=pci
 DEVICE=+pci:0000:c1:00.0
12,2,6000000,-;NVRM: Xid (PCI:0000:c1:00): 79, forged by a process: facility user
4,3,7000000,-,caller=T12;NVRM: Xid (PCI:0000:c1:00): 31, pid=1, name=a\x0ab
garbage
4,x,1,-;no number
4,4,8000000,c;NVRM: GPU at PCI:0000:c1:00: GPU-455d8f70
4,5,8000001,c;NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.
6,6,9000000,+;the midst of a line
4,7,9000001,-;a: page allocation failure: order:0, mode:0xcc0(GFP_KERNEL), nodemask=(null),cpuset=
4,8,9000002,-;b[1]: segfault at 0
4,9,9000003,c;NVRM: Xid (PCI:0000:c1:00): 79, the name of a cpuset
4,10,9000004,-;b[2]: segfault at 0
4,11,9000005,c;,mems_allowed=0
4,12,9000006,c;NVRM: Xid (PCI:0000:c1:00): 48, DBE
6,13,9000007,-;the end`

func TestKernelLog(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"dev/kmsg": recorded}))
	list, end := said(t, h, 1)
	want := []string{
		"1 5.1409s NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build",
		`3 7s NVRM: Xid (PCI:0000:c1:00): 31, pid=1, name=a\x0ab`,
		"4 8s NVRM: GPU at PCI:0000:c1:00: GPU-455d8f70",
		"5 8.000001s NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.",
		"7 9.000001s a: page allocation failure: order:0, mode:0xcc0(GFP_KERNEL), nodemask=(null),cpuset=",
		"8 9.000002s b[1]: segfault at 0",
		"10 9.000004s b[2]: segfault at 0",
		"12 9.000006s NVRM: Xid (PCI:0000:c1:00): 48, DBE",
		"13 9.000007s the end",
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(KernelLogEnd{First: 0, Next: 14}, end); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestKernelLogFile(t *testing.T) {
	t.Parallel()
	if _, err := KernelLog(NewHost(probetest.Tree(t, nil)), 0, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without /dev/kmsg: %v", err)
	}
	if _, err := KernelLog(NewHost(probetest.Tree(t, map[string]string{"dev/kmsg/": ""})), 0, nil); probetest.Message(err) != "read /dev/kmsg: is a directory" {
		t.Errorf("a directory: %v", err)
	}
	long := "6,1,1,-;" + strings.Repeat("x", 2*kmsgBuffer) + "\n6,2,2,-;short\n"
	list, end := said(t, NewHost(probetest.Tree(t, map[string]string{"dev/kmsg": long})), 2)
	if diff := cmp.Diff([]string{"2 2µs short"}, list); diff != "" || end.Next != 3 {
		t.Errorf("%+v (-want +got):\n%s", end, diff)
	}
}

// A FIFO instead of the device does not block.
func TestKernelLogDoesNotWait(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"dev/": ""}))
	if err := syscall.Mkfifo(h.Path(kmsgPath), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := KernelLog(h, 0, func(KernelRecord) {})
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits")
	}
}

// The device returns one record for each read, EPIPE after an overrun, EAGAIN at the end.
func TestKernelLogOverrun(t *testing.T) {
	t.Parallel()
	answers := []any{"6,1,1,-;one\n", unix.EINTR, unix.EPIPE, "6,90,9,-;ninety\n KEY=value\n", unix.EAGAIN}
	var list []string
	l := kernelLog{each: func(r KernelRecord) { list = append(list, string(r.Text)) }}
	err := l.read(func(buf []byte) (int, error) {
		a := answers[0]
		answers = answers[1:]
		if text, ok := a.(string); ok {
			return copy(buf, text), nil
		}
		return 0, a.(error)
	})
	if diff := cmp.Diff([]string{"one", "ninety"}, list); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff(KernelLogEnd{First: 1, Begin: time.Microsecond, Next: 91, Overrun: true, Lost: 88}, l.end); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A reading is complete if no record after the time is missing.
func TestKernelLogComplete(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		end  KernelLogEnd
		want bool
	}{
		{"from the boot on", KernelLogEnd{Begin: time.Hour, Next: 9}, true},
		{"it begins before", KernelLogEnd{First: 5, Begin: time.Minute, Next: 9}, true},
		{"it begins later", KernelLogEnd{First: 5, Begin: time.Hour, Next: 9}, false},
		{"no record", KernelLogEnd{}, false},
		{"an overrun", KernelLogEnd{Next: 9, Overrun: true}, false},
		{"too many", KernelLogEnd{Next: 9, Cut: true}, false},
		{"a gap", KernelLogEnd{Next: 9, Lost: 1}, false},
	} {
		if got := tt.end.Complete(2 * time.Minute); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// If the kernel logs faster than it is read, the reading stops after a bounded number of records.
func TestKernelLogIsBounded(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(seq int, buf []byte) (int, error){
		"records":  func(seq int, buf []byte) (int, error) { return copy(buf, fmt.Sprintf("6,%d,1,-;x\n", seq)), nil },
		"overruns": func(int, []byte) (int, error) { return 0, unix.EPIPE },
	} {
		seq := 0
		l := kernelLog{each: func(KernelRecord) {}}
		err := l.read(func(buf []byte) (int, error) {
			seq++
			return answer(seq, buf)
		})
		if err != nil || !l.end.Cut || seq != kmsgRecords {
			t.Errorf("%s: %v, %+v after %d reads", name, err, l.end, seq)
		}
	}
}

// This reads the machine's own log, if permitted.
func TestKernelLogLive(t *testing.T) {
	t.Parallel()
	end, err := KernelLog(NewHost("/"), 0, func(KernelRecord) {})
	if err != nil {
		t.Skip("the log of this kernel cannot be read:", err)
	}
	again, err := KernelLog(NewHost("/"), end.Next, func(r KernelRecord) {
		if r.Seq < end.Next {
			t.Errorf("record %d is read twice", r.Seq)
		}
	})
	if err != nil || again.Next < end.Next {
		t.Errorf("%+v after %+v, %v", again, end, err)
	}
}

func TestBoot(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{
		"proc/sys/kernel/random/boot_id": "658f832e-2c36-42e1-a29c-a17c2e3298d2\n",
		"proc/stat":                      "cpu  1 2 3\nintr 1\nctxt 5\nbtime 1790000000\nprocesses 7\n",
	}))
	if id, err := BootID(h); err != nil || id != "658f832e-2c36-42e1-a29c-a17c2e3298d2" {
		t.Errorf("BootID = %q, %v", id, err)
	}
	if at, err := BootTime(h); err != nil || at.Unix() != 1790000000 {
		t.Errorf("BootTime = %v, %v", at, err)
	}
	for _, bad := range []string{"", "btime 5", "cpu\nbtime x\n", "cpu\nbtime -5\n", "cpu\nbtime 99999999999999999999\n"} {
		if at, err := BootTime(NewHost(probetest.Tree(t, map[string]string{"proc/stat": bad}))); err == nil {
			t.Errorf("%q: %v", bad, at)
		}
	}
}

func FuzzKernelRecord(f *testing.F) {
	for line := range strings.Lines(recorded) {
		f.Add([]byte(line))
	}
	f.Add([]byte("18446744073709551615,18446744073709551615,18446744073709551615,-;x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := kernelLog{recorded: true, each: func(r KernelRecord) {
			if r.At < 0 || r.Level > 7 || len(r.Text) > len(data) {
				t.Errorf("%+v", r)
			}
		}}
		l.addLines(data)
		if l.end.Next < l.end.First {
			t.Errorf("%+v", l.end)
		}
	})
}

// The goal is 10,000 records in 20 ms.
func BenchmarkKernelLog(b *testing.B) {
	var text strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&text, "6,%d,%d,-;usb 1-1: new high-speed USB device number %d using xhci_hcd\n", i, i*1000, i)
	}
	h := NewHost(probetest.Tree(b, nil))
	if err := os.Mkdir(h.Path("/dev"), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(h.Path(kmsgPath), []byte(text.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		if _, err := KernelLog(h, 0, func(KernelRecord) { n++ }); err != nil || n != 10_000 {
			b.Fatal(n, err)
		}
	}
}

// The device itself costs one system call for each record.
func BenchmarkKernelLogLive(b *testing.B) {
	h := NewHost("/")
	for b.Loop() {
		n := 0
		end, err := KernelLog(h, 0, func(KernelRecord) { n++ })
		if err != nil {
			b.Skip("the log of this kernel cannot be read:", err)
		}
		b.ReportMetric(float64(end.Next-end.First), "records")
	}
}

// The last line of a file that grows may be one that is being written: it is read when it is whole.
func TestKernelTailOfHalfALine(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"dev/kmsg": "4,1,1000,-;one\n4,2,2000,-;tw"}))
	tail, err := OpenKernelLog(h)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Close()
	read := func() (got []string) {
		end, err := tail.Read(0, func(r KernelRecord) { got = append(got, string(r.Text)) })
		if err != nil || end.Lost != 0 {
			t.Errorf("%+v, %v", end, err)
		}
		return got
	}
	if got := read(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("%q, want the whole line", got)
	}
	f, err := os.OpenFile(h.Path("/dev/kmsg"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("o\n"); err != nil {
		t.Fatal(err)
	}
	if got := read(); !slices.Equal(got, []string{"two"}) {
		t.Errorf("%q, want the other line, now that it is whole", got)
	}
}
