package lbnl

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// base is a tmpfs for the stage itself: upper layers, texts to bind, copies of sleep(1).
const base = "/tmp/.nhco-base"

// root has the files that every case finds, below testdata/root: user databases, a recorder named
// logger.
//
//go:embed testdata/root
var root embed.FS

// masked are the commands that no case finds unless it provides them.
var masked = strings.Fields(`scontrol sinfo squeue pbsnodes qselect qmgr qstat badmin bhosts sbatchd mdiag mcelog
	dmidecode nvidia-smi nvidia-healthmon ping ping6 netstat ipmitool service shutdown reboot`)

// cleared are the files of an installed NHC or Torque.
var cleared = []string{"/etc/default/nhc", "/etc/nhc", "/var/log/nhc.log", "/var/spool/torque"}

// setStage creates in this process's namespaces the environment that all cases share.
func (s *scene) setStage() error {
	unix.Umask(0o022)
	host := "node01"
	if s.Host != nil {
		host = *s.Host
	}
	if err := unix.Sethostname([]byte(host)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	for _, step := range []func() error{nameProcess, detachRemote, mountStage, makeDevices, raiseLoopback, layFiles} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// nameProcess gives process 1 a name in ps that no case uses. The kernel took its name from the
// executed file.
func nameProcess() error {
	return os.WriteFile("/proc/self/comm", []byte(initName), 0o644)
}

// detachRemote unmounts the host's network and user-space file systems, because statfs may hang on
// them.
func detachRemote() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if strings.HasPrefix(f[2], "fuse") || strings.HasPrefix(f[2], "nfs") {
			_ = unix.Unmount(unescape.Replace(f[1]), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
	return nil
}

// mountStage makes /etc, /usr and /var writable without a permanent change, and all volatile
// directories new.
func mountStage() error {
	const pseudo = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := mountAt("tmpfs", base, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, d := range []string{"/etc", "/usr", "/var"} {
		upper, work := base+d+"/u", base+d+"/w"
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
			return err
		}
		layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", d, upper, work)
		if err := mountAt("overlay", d, "overlay", 0, layers); err != nil {
			return err
		}
	}
	return errors.Join(
		mountAt("tmpfs", "/run", "tmpfs", 0, "mode=755"),
		mountAt("tmpfs", dir, "tmpfs", 0, "mode=755"),
		mountAt("tmpfs", "/dev", "tmpfs", 0, "mode=755,size=64m"),
		mountAt("proc", "/proc", "proc", pseudo, ""),
		mountAt("sysfs", "/sys", "sysfs", pseudo, ""))
}

// makeDevices fills /dev.
func makeDevices() error {
	devices := []struct {
		name         string
		major, minor uint32
	}{
		{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}, {"console", 5, 1},
	}
	for _, d := range devices {
		if err := makeNode("/dev/"+d.name, unix.S_IFCHR, d.major, d.minor, 0o666); err != nil {
			return err
		}
	}
	links := map[string]string{"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
	for name, target := range links {
		if err := os.Symlink("/proc/self/"+target, "/dev/"+name); err != nil {
			return err
		}
	}
	for _, d := range []string{"/dev/shm", "/dev/pts"} {
		if err := errors.Join(os.Mkdir(d, 0o777), unix.Chmod(d, 0o777)); err != nil {
			return err
		}
	}
	return nil
}

// raiseLoopback brings lo up.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo); err != nil {
		return fmt.Errorf("read flags of lo: %w", err)
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("raise lo: %w", err)
	}
	return nil
}

// layFiles creates the files of every case, and removes files that would reveal the host.
func layFiles() error {
	for _, d := range []string{"/usr/bin/", "/usr/sbin/", "/usr/local/bin/", "/usr/local/sbin/"} {
		for _, name := range masked {
			if err := os.Remove(d + name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	for _, path := range cleared {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	const top = "testdata/root"
	err := fs.WalkDir(root, top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := root.ReadFile(path)
		if err != nil {
			return err
		}
		mode := uint32(0o644)
		if filepath.Base(filepath.Dir(path)) == "bin" {
			mode = 0o755
		}
		return putFile(strings.TrimPrefix(path, top), text, mode)
	})
	return errors.Join(err, putFile(callsPath, nil, 0o666), os.Mkdir(dir+"/etc", 0o755))
}

// mountAt mounts, and names the target in an error.
func mountAt(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// devicesSetting is the environment variable with a directory of device files, for a user namespace,
// which cannot create any. Their names are mode-major-minor, with the mode in octal.
const devicesSetting = "NHC_GPU_DEVICES"

// makeNode creates a device file, FIFO or socket with exactly that mode.
func makeNode(path string, kind, major, minor, mode uint32) error {
	devices := os.Getenv(devicesSetting)
	if devices != "" && (kind == unix.S_IFCHR || kind == unix.S_IFBLK) {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		return mountAt(fmt.Sprintf("%s/%o-%d-%d", devices, kind|mode, major, minor), path, "", unix.MS_BIND, "")
	}
	if err := unix.Mknod(path, kind|mode, int(unix.Mkdev(major, minor))); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return chmod(path, mode)
}

// putFile writes a file with exactly that mode over any existing one, and creates its parent
// directories.
func putFile(path string, text []byte, mode uint32) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return err
	}
	return chmod(path, mode)
}

// chmod sets a mode that may have bits above 0777.
func chmod(path string, mode uint32) error {
	if err := unix.Chmod(path, mode); err != nil {
		return fmt.Errorf("chmod %s: %w", path, err)
	}
	return nil
}
