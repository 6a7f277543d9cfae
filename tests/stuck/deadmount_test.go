package stuck

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/deadfs"
)

// deadMountEnv names the directory to mount on; a test binary with it is the child in its own mount
// namespace.
const deadMountEnv = "NHC_GPU_DEAD_MOUNT"

// deadLinesEnv has the check lines of its configuration.
const deadLinesEnv = "NHC_GPU_DEAD_LINES"

// deadFirstEnv has the options of the first run, -a if it is not set.
const deadFirstEnv = "NHC_GPU_DEAD_FIRST"

// insideDeadMount mounts a FUSE file system that accepts requests and never answers, like a dead
// file server, and runs the program on it twice. Its own end releases all blocked processes.
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
	fs, err := deadfs.Mount(os.TempDir(), dir)
	if err != nil {
		return err
	}
	fs.Die()
	return nil
}

// generateBesideDeadMount runs genconf on a node with a dead mount.
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
