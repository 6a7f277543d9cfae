package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// bubbleName is the argv[0] of the test binary as process 1 of a bubble. A bubble has its own PID,
// mount, network, IPC and UTS namespaces, and runs one cluster. Nothing in a bubble conflicts with
// anything outside of it, the host's files do not change, and no process outlives it.
const bubbleName = "cluster-test-bubble"

// These are paths inside every bubble.
const (
	Dir        = "/run/cluster"           // the cluster's directory on the host
	BinDir     = "/run/bin"               // the directory of nhc-gpu on the host
	FreezerDir = "/sys/fs/cgroup/freezer" // cgroup v1, where the kernel has it
	GroupsDir  = "/run/groups"            // cgroup v2, where the kernel has it
)

// GPUs is the number of device files of GPUs in a bubble.
const GPUs = 8

// bubbleMain is process 1. It prints "ready" when the bubble is complete, adopts orphans, and ends
// when its standard input does. Then every process in the bubble is dead, however the test went.
func bubbleMain(args []string) int {
	b := bubble{root: args[1], cluster: args[2], bin: args[3], cgroup: args[4]}
	if err := b.make(); err != nil {
		fmt.Println(err)
		return 1
	}
	go adoptOrphans()
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	b.end()
	return 0
}

type bubble struct {
	root    string // the system whose Slurm runs: "/", or a tree from debootstrap
	cluster string // becomes Dir
	bin     string // becomes BinDir
	cgroup  string // our directory in FreezerDir and in GroupsDir
}

// make creates the bubble around this process.
func (b *bubble) make() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := b.mounts(); err != nil {
		return err
	}
	if err := unix.Chroot(b.root); err != nil {
		return fmt.Errorf("chroot %s: %w", b.root, err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("ctl")); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	b.mountGroups()
	return listenSyslog()
}

// mounts gives the bubble its own /proc, /dev, /etc, /run, /tmp, /var/log and
// /var/lib.
func (b *bubble) mounts() error {
	cluster, err := cloneTree(b.cluster) // it may lie below a directory that is about to be covered
	if err != nil {
		return err
	}
	bin, err := cloneTree(b.bin)
	if err != nil {
		return err
	}
	if b.root != "/" {
		if err := readOnlyRoot(b.root); err != nil {
			return err
		}
	}
	for _, m := range []struct{ kind, at string }{
		{"proc", "proc"}, {"sysfs", "sys"}, {"tmpfs", "sys/fs/cgroup"},
		{"tmpfs", "dev"}, {"tmpfs", "run"}, {"tmpfs", "tmp"}, {"tmpfs", "var/log"}, {"tmpfs", "var/lib"},
	} {
		at := filepath.Join(b.root, m.at)
		if err := unix.Mount(m.kind, at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.kind, at, err)
		}
	}
	for _, dir := range []string{"run/munge", "run/nhc-gpu", "var/lib/nhc-gpu", FreezerDir, GroupsDir} {
		if err := os.MkdirAll(filepath.Join(b.root, dir), 0o755); err != nil {
			return err
		}
	}
	return errors.Join(
		attachTree(cluster, filepath.Join(b.root, Dir)),
		attachTree(bin, filepath.Join(b.root, BinDir)),
		devices(filepath.Join(b.root, "dev")),
		privateEtc(filepath.Join(b.root, "etc")),
	)
}

// readOnlyRoot mounts dir so that nothing in the bubble can write to it.
func readOnlyRoot(dir string) error {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on itself: %w", dir, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", dir, err)
	}
	return nil
}

func cloneTree(dir string) (fd int, err error) {
	fd, err = unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("clone mount of %s: %w", dir, err)
	}
	return fd, nil
}

func attachTree(fd int, at string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount on %s: %w", at, err)
	}
	return nil
}

func devices(dev string) error {
	numbers := map[string]uint64{}
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9} {
		numbers[name] = unix.Mkdev(1, minor)
	}
	for minor := range uint32(GPUs) { // slurmd requires device files
		numbers[fmt.Sprintf("nvidia%d", minor)] = unix.Mkdev(195, minor)
	}
	for name, number := range numbers {
		path := filepath.Join(dev, name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(number)); err != nil {
			return fmt.Errorf("make device %s: %w", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	return os.Symlink("/proc/self/fd", filepath.Join(dev, "fd"))
}

// privateEtc covers etc with a directory of links to its content, except the cluster's own files.
func privateEtc(etc string) error {
	covered, err := cloneTree(etc)
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", etc, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", etc, err)
	}
	if err := attachTree(covered, filepath.Join(etc, ".real")); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(etc, ".real"))
	if err != nil {
		return err
	}
	own := map[string]bool{"nhc": true, "slurm": true, "default": true, "hosts": true}
	for _, e := range entries {
		if own[e.Name()] {
			continue
		}
		if err := os.Symlink(filepath.Join(".real", e.Name()), filepath.Join(etc, e.Name())); err != nil {
			return err
		}
	}
	for _, dir := range []string{"nhc", "default"} {
		if err := os.Mkdir(filepath.Join(etc, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink(filepath.Join(Dir, "etc"), filepath.Join(etc, "slurm")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(etc, "hosts"), []byte("127.0.0.1 localhost ctl\n"), 0o644)
}

// loopbackUp brings up the loopback interface, with one more address: if there is only 127.0.0.1,
// getaddrinfo assumes that the machine has no IPv4.
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	alias, err := unix.NewIfreq("lo:1")
	if err != nil {
		return err
	}
	if err := alias.SetInet4Addr([]byte{192, 0, 2, 1}); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCSIFADDR, alias); err != nil {
		return fmt.Errorf("add an address to lo: %w", err)
	}
	return nil
}

// mountGroups mounts the freezer of cgroup v1, whose frozen processes do not react to signals, and
// cgroup v2. If the kernel lacks one, the tests that need it are skipped.
func (b *bubble) mountGroups() {
	for _, m := range [][3]string{{"cgroup", FreezerDir, "freezer"}, {"cgroup2", GroupsDir, ""}} {
		if unix.Mount(m[0], m[1], m[0], 0, m[2]) == nil {
			_ = os.Mkdir(filepath.Join(m[1], b.cgroup), 0o755)
		}
	}
}

// listenSyslog writes the messages sent to /dev/log to the cluster's log directory, one per line.
func listenSyslog() error {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "/dev/log", Net: "unixgram"})
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(Dir, "log/syslog"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(file, "%s\n", buf[:n])
		}
	}()
	return nil
}

func adoptOrphans() {
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	for range died {
		reap()
	}
}

func reap() {
	for {
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// end kills every process of the bubble, even frozen ones, and removes its groups, which are the only
// part of the host.
func (b *bubble) end() {
	dir, tree := filepath.Join(FreezerDir, b.cgroup), filepath.Join(GroupsDir, b.cgroup)
	for range 500 {
		groups, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, g := range append(groups, dir) {
			_ = os.WriteFile(filepath.Join(g, "freezer.state"), []byte("THAWED"), 0)
		}
		err := unix.Kill(-1, unix.SIGKILL)
		reap()
		for _, g := range groups {
			_ = os.Remove(g)
		}
		_ = os.Remove(dir)
		removeGroups(tree)
		_, left := os.Stat(dir)
		_, leftToo := os.Stat(tree)
		if errors.Is(err, unix.ESRCH) && left != nil && leftToo != nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// removeGroups removes a cgroup and all below it.
func removeGroups(dir string) {
	below, _ := os.ReadDir(dir)
	for _, d := range below {
		if d.IsDir() {
			removeGroups(filepath.Join(dir, d.Name()))
		}
	}
	_ = os.Remove(dir)
}
