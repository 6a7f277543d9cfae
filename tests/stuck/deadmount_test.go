package stuck

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// deadMountEnv names the directory to mount on; a test binary that finds it set
// is the child in a mount namespace of its own.
const deadMountEnv = "NHC_GPU_DEAD_MOUNT"

// deadLinesEnv holds the check lines of its configuration.
const deadLinesEnv = "NHC_GPU_DEAD_LINES"

// deadFirstEnv holds the options of the first run, -a if it is not set.
const deadFirstEnv = "NHC_GPU_DEAD_FIRST"

// insideDeadMount mounts a FUSE file system that takes requests and never
// answers, as a dead file server would, and runs the program on it twice. Its
// own end releases whatever hangs.
func insideDeadMount() int {
	dir := os.Getenv(deadMountEnv)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Println("make mounts private:", err)
		return 1
	}
	if err := mountDead(dir); err != nil {
		fmt.Println("skip: needs FUSE:", err)
		return 0
	}
	conf := filepath.Join(os.TempDir(), fmt.Sprintf("dead-%d.conf", os.Getpid()))
	defer os.Remove(conf)
	if err := os.WriteFile(conf, []byte(os.Getenv(deadLinesEnv)), 0o644); err != nil {
		fmt.Println(err)
		return 1
	}
	for i := range 2 {
		words := []string{"-a"}
		if first := os.Getenv(deadFirstEnv); first != "" && i == 0 {
			words = strings.Fields(first)
		}
		cmd := exec.Command(os.Getenv("NHC_GPU_BINARY"), append(words, "-t", "8", "-c", conf, "LOGFILE=-", "MARK_OFFLINE=0")...)
		cmd.Env = []string{"SLURMD_NODENAME=" + os.Getenv("SLURMD_NODENAME")}
		began := time.Now()
		out, _ := cmd.CombinedOutput()
		fmt.Printf("%sexit %d\n", out, cmd.ProcessState.ExitCode())
		switch took := time.Since(began); {
		case took < 3500*time.Millisecond:
			fmt.Println("at once")
		case took < 9500*time.Millisecond: // half of TIMEOUT, and the time to kill
			fmt.Println("slow")
		default:
			fmt.Println("too slow:", took)
		}
		fmt.Println("---")
	}
	generateBesideDeadMount()
	return 0
}

func mountDead(dir string) error {
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	opts := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd())
	if err := unix.Mount("dead", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return fmt.Errorf("mount fuse on %s: %w", dir, err)
	}
	go serveNothing(fuse)
	return nil
}

// generateBesideDeadMount has genconf look at a node one of whose mounts is dead.
func generateBesideDeadMount() {
	if err := mountDead("/srv"); err != nil {
		fmt.Println(err)
		return
	}
	cmd := exec.Command(os.Getenv("NHC_GPU_BINARY"), "genconf", "-c", "-")
	cmd.Env = []string{"SLURMD_NODENAME=" + os.Getenv("SLURMD_NODENAME")}
	began := time.Now()
	out, _ := cmd.CombinedOutput()
	fmt.Printf("%sexit %d\n", out, cmd.ProcessState.ExitCode())
	if took := time.Since(began); took > 15*time.Second {
		fmt.Println("too slow:", took)
	}
}

// serveNothing answers FUSE's first request, INIT, and reads the others.
func serveNothing(fuse *os.File) {
	const opInit = 26 // FUSE_INIT, include/uapi/linux/fuse.h
	buf := make([]byte, 1<<20)
	for {
		n, err := unix.Read(int(fuse.Fd()), buf)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		if binary.LittleEndian.Uint32(buf[4:]) != opInit {
			continue
		}
		// struct fuse_out_header (len, error, unique), struct fuse_init_out.
		reply := make([]byte, 16+64)
		binary.LittleEndian.PutUint32(reply, uint32(len(reply)))
		copy(reply[8:16], buf[8:16])
		binary.LittleEndian.PutUint32(reply[16:], 7)       // major
		binary.LittleEndian.PutUint32(reply[20:], 31)      // minor
		binary.LittleEndian.PutUint32(reply[36:], 128<<10) // max_write
		_, _ = unix.Write(int(fuse.Fd()), reply)
	}
}
