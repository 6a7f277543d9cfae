package fakesys

import (
	"fmt"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Mount writes the tree below a directory and replaces this machine's /sys by that of the tree, for
// the calling goroutine and processes that it starts from now on. So programs without an option for
// another root can read the node. It needs root. The goroutine must end and do nothing else.
func (n *Node) Mount(dir string) error {
	if err := n.Write(dir); err != nil {
		return err
	}
	runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private: %w", err)
	}
	if err := unix.Mount(filepath.Join(dir, "sys"), "/sys", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount on /sys: %w", err)
	}
	return nil
}
