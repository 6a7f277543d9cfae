package evidence

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

const bootLine = "BOOT_IMAGE=/vmlinuz-5.14 root=UUID=01234567-89ab-cdef-0123-456789abcdef ip=dhcp quiet BOOTIF=01-52-54-00-12-34-56 " +
	"nfsroot=files7:/images/x systemd.hostname=login.hpc.example iommu=pt crashkernel=256M kickstart@files8 -- 3\n"

// node is a node with one GPU, one port, one process that hangs, and a memory of checks.
func node(t *testing.T) *probe.Host {
	t.Helper()
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		"/sys/bus/pci/devices/0000:c1:00.0/vendor":                    "0x10de\n",
		"/sys/bus/pci/devices/0000:c1:00.0/current_link_width":        "16\n",
		"/sys/class/infiniband/mlx5_0/node_guid":                      "b8ce:f603:00a1:b2c3\n",
		"/sys/class/infiniband/mlx5_0/ports/1/state":                  "4: ACTIVE\n",
		"/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error":  "7\n",
		"/sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_seq": "9\n",
		"/sys/class/net/eth0/address":                                 "b8:ce:f6:01:02:03\n",
		"/sys/class/net/eth0/statistics/rx_errors":                    "5\n",
		"/sys/class/dmi/id/product_serial":                            "S1234567\n",
		"/proc/driver/nvidia/version":                                 "NVRM version: 580.1\n",
		"/proc/driver/nvidia/gpus/0000:c1:00.0/information":           "GPU UUID: GPU-01234567-89ab-cdef-0123-456789abcdef\n",
		"/proc/7/stat":             "7 (a b) D 1 7 7 0 -1 0 0\n",
		"/proc/7/wchan":            "nv_lock",
		"/proc/7/status":           "Name:\tx\nState:\tD\nUid:\t1000\t1000\t1000\t1000\nVmSize:\t1 kB\n",
		"/proc/7/cmdline":          "train.py\x00--user\x00alice\x00",
		"/proc/mounts":             "nfs1:/home /home nfs rw,addr=10.1.2.3 0 0\n",
		"/dev/kmsg":                "4,1,1000000,-;NVRM: Xid (PCI:0000:c1:00): 79\n",
		"/var/lib/x/ib.json":       `{"symbol_error": 7}`,
		"/proc/cmdline":            bootLine,
		"/var/lib/x/silence.json":  `{"by":"alan \"al\" smith","why": "RMA 4711 with Ann","until":"2027-01-01"}`,
		"/var/lib/x/job-1234.json": `{"job": 1234}`,
	}))
	h.SetPast("/var/lib/x")
	return h
}

func textOf(files []File) string {
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "## %s\n%s", f.Name, f.Data)
	}
	return b.String()
}

func TestCollect(t *testing.T) {
	t.Parallel()
	text := textOf(Collect(node(t)))
	for _, want := range []string{
		"0000:c1:00.0/vendor: 0x10de", "ports/1/state: 4: ACTIVE", "symbol_error: 7", "out_of_seq: 9", "rx_errors: 5", "NVRM version: 580.1",
		"GPU UUID: GPU-", "D nv_lock train.py --user alice", "nfs1:/home", "Xid (PCI:0000:c1:00): 79", "ib.json", "product_serial: S1234567",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "job-1234") {
		t.Error("the record of a job is in the archive")
	}
	if strings.Contains(text, "errors.txt") {
		t.Errorf("files that do not exist are errors:\n%s", text)
	}
}

// A file that does not answer costs the archive that file and those of its part behind it, and the process its
// further use. A process whose command line does not answer is listed by its name, as all others.
func TestCollectBlocked(t *testing.T) {
	t.Parallel()
	h := node(t)
	for _, name := range []string{"/proc/driver/nvidia/params", "/proc/7/cmdline"} {
		pipe := h.Path(name)
		_ = os.Remove(pipe)
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if f, err := os.OpenFile(pipe, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil { // the reader goes on
				f.Close()
			}
		}()
	}
	text := textOf(collect(h, time.Second))
	for _, want := range []string{
		"nvidia.txt: no answer within 1s: the rest is missing\n", "NVRM version: 580.1", "processes.txt: no answer within 1s: the rest is missing\n", "7 - D nv_lock a b\n",
		"symbol_error: 7", "Xid (PCI:0000:c1:00): 79", "product_serial: S1234567",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if calls := h.Unanswered(); len(calls) != 2 || !slices.Contains(calls, "collect nvidia.txt") || !slices.Contains(calls, "collect processes.txt") {
		t.Errorf("unanswered: %q", calls)
	}
}

// A node without devices, without a memory and with a file that cannot be read.
func TestCollectLittle(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{"/proc/version/": ""}))
	text := textOf(Collect(h))
	if !strings.Contains(text, "read /proc/version: is a directory") {
		t.Errorf("the error is not in\n%s", text)
	}
}

func isCode(word string) bool {
	return slices.Contains([]string{"gpu", "gpu.xid", "gpu.xid.79", "gpu.recovery.lost"}, word)
}

func TestRedact(t *testing.T) {
	t.Parallel()
	files := append(Collect(node(t)), File{"facts.txt", []byte("node gpu017: serial 1650000003\nGPU 3: Serial Number: 99\nsent to gpu017.hpc.example\n")})
	text := textOf(Redact(files, "gpu017", isCode))
	for _, secret := range []string{"alice", "train.py", "01234567-89ab", "b8ce:f603", "b8:ce:f6", "10.1.2.3", "S1234567", "gpu017", "Number: 99", "1650000003", "smith", "4711", "52-54", "files7", "files8", "hpc.example", "vmlinuz"} {
		if strings.Contains(text, secret) {
			t.Errorf("%q in\n%s", secret, text)
		}
	}
	for _, want := range []string{"0000:c1:00.0/vendor", "symbol_error: 7", "Xid (PCI:0000:c1:00): 79", "D nv_lock -", "GPU-redacted", "BOOT_IMAGE=redacted root=UUID=redacted ip=dhcp quiet BOOTIF=redacted nfsroot=redacted", "iommu=pt crashkernel=256M redacted -- 3\n", `"until":"2027`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// A node whose name is the first word of codes keeps the codes, and loses its domain.
func TestRedactKeepsCodes(t *testing.T) {
	t.Parallel()
	const text = `{"node":"gpu","host":"gpu-b7","code":"gpu.xid.79"} NHC: gpu lost [gpu.recovery.lost] on gpu.hpc.example`
	const want = `{"node":"node","host":"redacted","code":"gpu.xid.79"} NHC: node lost [gpu.recovery.lost] on node`
	if got := textOf(Redact([]File{{"event.json", []byte(text)}}, "gpu", isCode)); got != "## event.json\n"+want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func unpack(t *testing.T, data []byte) (files []File) {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(zip); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if head.Mode != 0o600 {
			t.Errorf("%s: mode %o", head.Name, head.Mode)
		}
		files = append(files, File{head.Name, content})
	}
}

func noise(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	return data
}

// An archive is never larger than its limit, also if its content cannot be compressed.
func TestArchive(t *testing.T) {
	t.Parallel()
	small := []File{{"a", []byte("1")}, {"b", nil}}
	data, err := Archive(small, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	if got := textOf(unpack(t, data)); got != textOf(small) {
		t.Errorf("got %q", got)
	}
	data, err = Archive([]File{{"a", noise(MaxArchive - 10)}, {"b", noise(100)}, {"c", noise(100)}}, time.Unix(1, 0))
	if err != nil || len(data) > MaxArchive+8<<10 {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	if files := unpack(t, data); len(files) != 3 || len(files[1].Data) != 10 || len(files[2].Data) != 0 {
		t.Errorf("%d files", len(files))
	}
}

func TestKeep(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, nil))
	if err := Keep(h, "x", nil); !errors.Is(err, probe.ErrNoMemory) {
		t.Errorf("without a memory: %v", err)
	}
	h.SetPast("/var/lib/x")
	part := noise(6<<20 - 300<<10)
	for i := range 12 {
		if err := Keep(h, fmt.Sprintf("2026%02d-a.tar.gz", i), part); err != nil {
			t.Fatal(err)
		}
	}
	dir := h.Path("/var/lib/x/" + Dir)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 8 || entries[0].Name() != "202604-a.tar.gz" {
		t.Fatalf("%v, %v: want the newest 8", entries, err)
	}
	if info, err := os.Stat(filepath.Join(dir, entries[0].Name())); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	for i := range maxJobs + 5 { // failed jobs displace each other, and no fault
		if err := Keep(h, Name(time.Unix(int64(1_900_000_000+i), 0), FailedJob+"7"), noise(100<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err = os.ReadDir(dir); err != nil || len(entries) != 8+maxJobs || entries[7].Name() != "202611-a.tar.gz" || entries[8].Name() != "20300317T174645Z-job.failed.7.tar.gz" {
		t.Errorf("%v, %v: want the newest %d, and each fault", entries, err, maxJobs)
	}
	for i := range maxJobs + 5 { // so do running ones
		code := []string{"job.hang", "job.stall", "job.straggler", "job.port.slow", "job.throttle", "job.memory.left"}[i%6]
		if err := Keep(h, Name(time.Unix(int64(1_900_100_000+i), 0), code), noise(100<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err = os.ReadDir(dir); err != nil || len(entries) != 8+2*maxJobs || entries[7].Name() != "202611-a.tar.gz" {
		t.Errorf("%v, %v: want the newest %d of each kind, and each fault", entries, err, maxJobs)
	}
	for _, name := range []string{Name(time.Unix(1_900_200_000, 0), "job.4711"), Name(time.Unix(1_900_200_001, 0), "job.gpu.lost"), Name(time.Unix(1_900_200_002, 0), "gpu.xid.79")} {
		if err := Keep(h, name, noise(1<<20)); err != nil { // a person's, and faults
			t.Fatal(err)
		}
	}
	if entries, err = os.ReadDir(dir); err != nil || entries[0].Name() != "202604-a.tar.gz" || entries[7].Name() != "202611-a.tar.gz" || len(entries) >= 8+2*maxJobs {
		t.Errorf("%v, %v: want each fault, and no longer each job", entries, err)
	}
	link := filepath.Join(dir, "z.part")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	if err := Keep(h, "z", []byte("x")); err == nil || !strings.Contains(err.Error(), "write /var/lib/x/evidence/z: ") {
		t.Errorf("through a link: %v", err)
	}
}
