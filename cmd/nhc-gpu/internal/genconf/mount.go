package genconf

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
)

// Types of file systems that a healthy node can lack: interfaces of the kernel that it mounts at
// their first use, triggers of the automounter, and mounts of containers and desktops.
var uselessTypes = []string{
	"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue",
	"nfsd", "nsfs", "nullfs", "pstore", "ramfs", "rpc_pipefs", "securityfs", "selinuxfs", "squashfs", "tracefs",
}

// Directories where containers, logins and jobs mount file systems for their lifetime.
var temporaryDirs = []string{
	"/dev/shm", "/media", "/proc", "/run", "/snap", "/sys", "/tmp", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker",
	"/var/lib/enroot", "/var/lib/kubelet", "/var/lib/lxcfs", "/var/snap", "/var/spool/slurm", "/var/spool/slurmd", "/var/tmp",
}

// Types of file systems that nodes share: if the server is full, all nodes would fail.
var sharedTypes = []string{
	"9p", "afs", "beegfs", "ceph", "cifs", "cvfs", "dvs", "fuse", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2",
	"orangefs", "panfs", "pvfs2", "smb3", "virtiofs", "wekafs",
}

// Types whose client mounts a file system of the server by itself when a process enters its directory
// (crossmnt of NFS, DFS of CIFS).
var crossedTypes = []string{"cifs", "nfs", "nfs4", "smb3"}

// Types without a size of their own.
var sizelessTypes = []string{"devpts", "devtmpfs", "iso9660", "overlay", "proc", "sysfs", "tmpfs"}

// mountSection adds the mounts, and limits for their use.
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
		why := whyTemporary(m, inv.Mounts, inv.Configured)
		if why == "" && g.namesNode(m.Point) {
			why = "the name is perhaps of this node alone"
		}
		switch {
		case later && m.Type != "autofs": // another mount hides it
		case why == temporary:
			left = append(left, m.Point)
		case strings.ContainsRune(m.Point+m.Source, utf8.RuneError):
			s.comment("no line for %s: its name is not UTF-8", m.Point)
		case why != "":
			option := "-f"
			if why == onDemand {
				option = "-F"
			}
			s.comment("%s: %s", m.Point, why)
			s.suggest("check_fs_mount", "-t", literalMatch(m.Type), option, m.Point)
		default:
			keep = append(keep, m)
		}
	}
	g.dbg("%d mounts, %d of them stay", len(inv.Mounts), len(keep))
	g.mountLines(keep)
	if len(left) > 0 {
		s.comment("no line for temporary mounts and mounts without data: %s", some(left))
	}
}

// some lists names, each once, at most 16.
func some(names []string) string {
	slices.Sort(names)
	names = slices.Compact(names)
	const most = 16
	if len(names) <= most {
		return strings.Join(names, " ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], " "), len(names)-most)
}

// Reasons why a mount is not permanent.
const (
	temporary = "temporary"
	onDemand  = "mounted on demand; the line below mounts it first"
	crossed   = "perhaps mounted by the client itself, at the first use; use the line if each boot mounts it"
)

// whyTemporary returns why a mount is not permanent, "" if it is; configured are the mount points that
// the node's configuration names.
func whyTemporary(m probe.Mount, all []probe.Mount, configured []string) string {
	below := func(dir string) bool {
		return m.Point != dir && strings.HasPrefix(m.Point, strings.TrimSuffix(dir, "/")+"/")
	}
	volume := func(o probe.Mount) bool { return m.Type == "afs" && o.Type == "afs" && below(o.Point) }
	made := func(o probe.Mount) bool { // the client perhaps made m at its first use, and removes it when it is idle
		rel, ok := strings.CutPrefix(m.Point, strings.TrimSuffix(o.Point, "/")+"/")
		return ok && rel != "" && m.Source == strings.TrimSuffix(o.Source, "/")+"/"+rel
	}
	kind, _, _ := strings.Cut(m.Type, ".")
	switch {
	case slices.Contains(uselessTypes, m.Type), m.Type == "fuse.portal", strings.HasPrefix(m.Type, "fuse.gvfs"):
		return temporary
	case slices.ContainsFunc(temporaryDirs, below):
		return temporary
	case m.Type == "overlay" && m.Point != "/", strings.HasSuffix(m.Point, "//deleted"), strings.HasPrefix(m.Source, "/dev/loop"), strings.HasPrefix(m.Source, "/dev/sr"):
		return temporary
	case kind == "fuse" && !slices.Contains(strings.Split(m.Options, ","), "user_id=0"), m.Type == "fuse.sshfs":
		return temporary // a user's mount
	case slices.ContainsFunc(all, volume), strings.Contains(m.Point, "/.zfs/snapshot/"):
		return temporary
	case slices.ContainsFunc(all, func(o probe.Mount) bool { return o.Type == "autofs" && (o.Point == m.Point || below(o.Point)) }):
		return onDemand
	case slices.Contains(crossedTypes, m.Type) && slices.ContainsFunc(all, made) && !slices.Contains(configured, m.Point):
		return crossed
	}
	return ""
}

// mountLines reads the size of each mount and adds its lines.
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
			g.sheet.warn("no line for %s (%s, %s): %v", m.Point, m.Type, m.Source, a.err[m.Point])
			continue
		case !inv.Space.Dir:
			g.sheet.comment("no line for %s: a single file, mounted by a container", m.Point)
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
	words, left := []string{"-t", literalMatch(m.Type)}, ""
	switch {
	case m.Source == "":
	case isNumbered(m.Source):
		left = "the name can change at a boot"
	case g.namesNode(m.Source):
		left = "the name is perhaps of this node alone"
	default:
		words = append(words, "-s", literalMatch(m.Source))
	}
	if g.sheet.check(name, append(words, "-f", m.Point)...) && left != "" {
		g.sheet.about("%s; no -s %s: %s", new(sheetLine).explanation(name), m.Source, left)
	}
}

// nodeName matches parts of names that each node has for itself: UUIDs, MAC addresses, the IP address
// in the path of an NFS root, WWIDs of disks.
var nodeName = checks.Lazily(`[0-9a-f]{8}(-+[0-9a-f]{4}){3}-+[0-9a-f]{12}|([0-9a-f]{2}[-:]){5}[0-9a-f]{2}|:/.*\b(\d{1,3}\.){3}\d{1,3}\b|[0-9a-f]{16}`)

// server matches the server and its file system in a source: nfs1:, fs-0123456789abcdef0.efs.com:,
// admin@FSID.cephfs=, //filer. All nodes have the same.
var server = checks.Lazily(`^([^/]*[:=]|//[^/]+)/`)

// namesNode reports whether a source or a mount point perhaps has another name on other nodes.
func (g *generator) namesNode(name string) bool {
	spaced := func(text string) string {
		words := strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		return " " + strings.Join(words, " ") + " "
	}
	name = strings.ToLower(name)
	host := strings.ToLower(g.Get("HOSTNAME_S"))
	if host != "" && strings.Contains(spaced(name), spaced(host)) {
		return true
	}
	if at := server().FindStringIndex(name); at != nil {
		name = name[at[1]-2:]
	}
	return nodeName().MatchString(name)
}

// numbered matches disks whose number is from the order of detection. mdadm counts down from md127 for
// an array that its configuration does not name.
var numbered = checks.Lazily(`^/dev/(([shv]|xv)d[a-z]|(nvme|mmcblk|pmem|dm-|md12|bcache|zd|rbd|nbd)\d|mapper/mpath)[^/]*$`)

// isNumbered reports whether a source is a disk whose name can change at the next boot, or differ on
// another node.
func isNumbered(source string) bool { return numbered().MatchString(source) }

// Limits for the use of file systems.
const (
	mostUsed   = 90       // percent of the space, as LBNL NHC
	mostInodes = 98       // percent of the inodes where there are very many
	manyInodes = 50000000 // as LBNL NHC
	fewInodes  = 10000    // fewer get no line
	bootFree   = 40 << 10 // kB, as LBNL NHC: a kernel and its initramfs
)

// spaceLines adds limits for the use of a file system.
func (g *generator) spaceLines(m probe.Mount, sp inventory.MountSpace) {
	s := &g.sheet
	kind, _, _ := strings.Cut(m.Type, ".")
	switch {
	case sp.Space.Total == 0, slices.Contains(sizelessTypes, m.Type), !slices.Contains(strings.Split(m.Options, ","), "rw"):
		return
	case slices.Contains(sharedTypes, kind):
		s.comment("%s is shared: if it is full, this line fails on every node", m.Point)
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
		s.warn("%s has almost no free inodes (%d%% used): no limit for them", m.Point, sp.Inodes.Percent)
		return
	}
	s.check("check_fs_iused", m.Point, percent(most, sp.Inodes.Percent))
}

// percent returns a limit. If the present use is close to it, the limit is halfway between the use
// and 100 %.
func percent(limit, used int) string {
	if used > limit-5 {
		limit = max(limit, used+(101-used)/2)
	}
	return fmt.Sprintf("%d%%", limit)
}

// base returns the name of the program from a command line's first word.
func base(command string) string { return path.Base(strings.TrimSuffix(command, ":")) }
