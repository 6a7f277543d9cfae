package genconf

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
)

// Types of file systems of which a node has no need to be healthy: interfaces
// of the kernel that are mounted when first used, triggers of the automounter,
// and what containers and desktops mount for themselves.
var uselessTypes = []string{
	"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue",
	"nfsd", "nsfs", "nullfs", "pstore", "ramfs", "rpc_pipefs", "securityfs", "selinuxfs", "squashfs", "tracefs",
}

// Folders in which containers, logins and jobs mount what goes when they do.
var passingPlaces = []string{
	"/dev/shm", "/media", "/proc", "/run", "/snap", "/sys", "/tmp", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker",
	"/var/lib/enroot", "/var/lib/kubelet", "/var/lib/lxcfs", "/var/snap", "/var/spool/slurmd", "/var/tmp",
}

// Types of file systems that other nodes have, too: when the server is full
// all of them would fail.
var sharedTypes = []string{
	"9p", "afs", "beegfs", "ceph", "cifs", "fuse", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs",
	"pvfs2", "smb3", "virtiofs", "wekafs",
}

// Types that hold nothing of their own, or memory: they have no size to watch.
var sizelessTypes = []string{"devpts", "devtmpfs", "iso9660", "overlay", "proc", "sysfs", "tmpfs"}

// mountSection writes the mounts, and how full they may be.
func (g *generator) mountSection(a answers) {
	s := &g.sheet
	s.heading("Filesystem checks")
	inv := g.part(a, inventory.PartMounts)
	if inv == nil {
		return
	}
	var keep []probe.Mount
	var left []string
	for i, m := range inv.Mounts {
		later := slices.ContainsFunc(inv.Mounts[i+1:], func(o probe.Mount) bool { return o.Point == m.Point })
		switch why := passing(m, inv.Mounts); {
		case later && m.Type != "autofs": // hidden by what is mounted on it
		case why == leftOut:
			left = append(left, m.Point)
		case strings.ContainsRune(m.Point+m.Source, utf8.RuneError):
			s.comment("no line for %s, whose name is not UTF-8", m.Point)
		case why != "":
			s.comment("%s: %s", m.Point, why)
			s.suggest("check_fs_mount", "-t", literalMatch(m.Type), "-F", m.Point)
		default:
			keep = append(keep, m)
		}
	}
	g.dbg("%d mounts, %d of them stay", len(inv.Mounts), len(keep))
	g.mountLines(keep)
	if len(left) > 0 {
		s.comment("left out, since they come and go or hold nothing: %s", some(left))
	}
}

// some lists names, each once, as many as a line may hold.
func some(names []string) string {
	slices.Sort(names)
	names = slices.Compact(names)
	const most = 16
	if len(names) <= most {
		return strings.Join(names, " ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], " "), len(names)-most)
}

const leftOut = "left out"

// passing says why a mount cannot be relied upon, "" if it can.
func passing(m probe.Mount, all []probe.Mount) string {
	below := func(dir string) bool {
		return m.Point != dir && strings.HasPrefix(m.Point, strings.TrimSuffix(dir, "/")+"/")
	}
	kind, _, _ := strings.Cut(m.Type, ".")
	switch {
	case slices.Contains(uselessTypes, m.Type), m.Type == "fuse.portal", strings.HasPrefix(m.Type, "fuse.gvfs"):
		return leftOut
	case slices.ContainsFunc(passingPlaces, below):
		return leftOut
	case m.Type == "overlay" && m.Point != "/", strings.HasSuffix(m.Point, "//deleted"), strings.HasPrefix(m.Source, "/dev/loop"):
		return leftOut
	case kind == "fuse" && !slices.Contains(strings.Split(m.Options, ","), "user_id=0"), m.Type == "fuse.sshfs":
		return leftOut // a person's
	case slices.ContainsFunc(all, func(o probe.Mount) bool { return o.Type == "autofs" && (o.Point == m.Point || below(o.Point)) }):
		return "mounted on demand; the line below, if you want it, mounts it first"
	}
	return ""
}

// mountLines asks each mount for its size and writes its lines.
func (g *generator) mountLines(mounts []probe.Mount) {
	var points []string
	for _, m := range mounts {
		points = append(points, m.Point)
	}
	g.vecho("filesystems...")
	a := g.ask(inventory.PartSpace, points...)
	var limits []func()
	seen := map[uint64]bool{}
	for _, m := range mounts {
		inv := a.have[m.Point]
		switch {
		case inv == nil:
			g.sheet.warn("%s (%s, %s) could not be looked at: %v", m.Point, m.Type, m.Source, a.err[m.Point])
			continue
		case !inv.Space.Dir:
			g.sheet.comment("no line for %s, a single file, which is how containers get theirs", m.Point)
			continue
		}
		g.mountLine(m)
		if sp := inv.Space; !seen[sp.Device] {
			seen[sp.Device] = true
			limits = append(limits, func() { g.spaceLines(m, sp) })
		}
	}
	for _, write := range limits {
		write()
	}
}

func (g *generator) mountLine(m probe.Mount) {
	options := strings.Split(m.Options, ",")
	name := "check_fs_mount"
	switch {
	case slices.Contains(options, "rw"):
		name = "check_fs_mount_rw"
	case slices.Contains(options, "ro"):
		name = "check_fs_mount_ro"
	}
	words := []string{"-t", literalMatch(m.Type)}
	if !isNumbered(m.Source) {
		words = append(words, "-s", literalMatch(m.Source))
	}
	g.sheet.check(name, append(words, "-f", m.Point)...)
}

// isNumbered says whether a source is a disk that may have another name after
// the next boot, since the kernel numbers disks as it finds them.
func isNumbered(source string) bool {
	disk, ok := strings.CutPrefix(source, "/dev/")
	for _, prefix := range []string{"sd", "hd", "vd", "xvd", "nvme", "dm-"} {
		if ok && strings.HasPrefix(disk, prefix) {
			return true
		}
	}
	return source == ""
}

// Limits of what may be used.
const (
	mostUsed   = 90       // percent of the space, as LBNL NHC
	mostInodes = 98       // percent of the inodes where there are very many
	manyInodes = 50000000 // as LBNL NHC
	fewInodes  = 10000    // so few are not worth a line
	bootFree   = 40 << 10 // kB, as LBNL NHC: a kernel and its initramfs
)

// spaceLines limits how full a file system may get.
func (g *generator) spaceLines(m probe.Mount, sp inventory.MountSpace) {
	s := &g.sheet
	kind, _, _ := strings.Cut(m.Type, ".")
	switch {
	case sp.Space.Total == 0, slices.Contains(sizelessTypes, m.Type), !slices.Contains(strings.Split(m.Options, ","), "rw"):
		return
	case slices.Contains(sharedTypes, kind):
		s.comment("%s is shared: full, it would fail on every node that has it", m.Point)
		s.suggest("check_fs_used", m.Point, percent(mostUsed, sp.Space.Percent))
		return
	}
	if m.Point == "/boot" && sp.Space.Free > 0 {
		free := strconv.FormatUint(bootFree/1024, 10) + "MB"
		if sp.Space.Free < 2*bootFree {
			free = strconv.FormatInt(sp.Space.Free/2, 10) + "kB"
		}
		s.check("check_fs_free", m.Point, free)
	} else if sp.Space.Percent >= 99 {
		s.warn("%s is full (%d%%): no limit for it", m.Point, sp.Space.Percent)
	} else {
		s.check("check_fs_used", m.Point, percent(mostUsed, sp.Space.Percent))
	}
	if sp.Inodes.Total < fewInodes {
		return
	}
	most := 100
	if sp.Inodes.Total >= manyInodes {
		most = mostInodes
	}
	if sp.Inodes.Percent >= 99 {
		s.warn("%s has hardly any inode left (%d%% used): no limit for them", m.Point, sp.Inodes.Percent)
		return
	}
	s.check("check_fs_iused", m.Point, percent(most, sp.Inodes.Percent))
}

// percent is a limit, raised where it would hardly hold now: half of what is
// left then.
func percent(limit, used int) string {
	if used > limit-5 {
		limit = max(limit, used+(101-used)/2)
	}
	return fmt.Sprintf("%d%%", limit)
}

// base is the name of a program in a command line's first word.
func base(command string) string { return path.Base(strings.TrimSuffix(command, ":")) }
