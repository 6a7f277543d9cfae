package genconf

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// The comments of nhc-active.conf name floors that the line below them is compared with. Of every
// built-in platform, the size, algorithm and ranks are those that the check runs by default.
func TestActiveNamesFloorsItMeets(t *testing.T) {
	t.Parallel()
	list, err := conf.ShippedPlatforms()
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		p := node.PlatformFigures(&list[i])
		to := targetOf(p)
		for _, test := range activeTests {
			words := strings.Fields(test.line)
			info, _ := checks.Lookup(words[0])
			c := info.New()
			if err := checks.Bind(c, words[1:]); err != nil {
				t.Fatal(err)
			}
			for _, f := range p.Floors {
				if !to.applies(f, p, test.floors) {
					continue
				}
				field := func(name string) int64 { return reflect.ValueOf(c).Elem().FieldByName(name).Int() }
				met := false
				switch test.line {
				case "check_gpu_bandwidth":
					met = f.Algorithm == "ce" && f.Size == field("Size") && (f.Test == "device_to_device") == (f.Ranks == 2)
				case "check_gpu_membw":
					met = f.Algorithm == "triad" && f.Size == field("Size")
				case "check_gpu_gemm":
					met = f.Algorithm == "bf16 cublaslt"
				case "check_nccl all_reduce":
					met = f.Ranks == to.gpus && field("Begin") == 0 && field("End") == 0
				}
				if !met {
					t.Errorf("%s: %s does not run %+v", p.Name, test.line, f)
				}
			}
		}
	}
}

// A platform's floors appear in the comment of a line if they apply to it.
func TestActiveComments(t *testing.T) {
	t.Parallel()
	list, err := conf.ShippedPlatforms()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(list, func(p conf.Platform) bool { return p.Name == "HGX H200" })
	for _, c := range []struct {
		gpus       int
		has, hasNo string
	}{
		{8, "all_reduce 431 GB/s by nvls with 16 GiB", "ib_write_bw"},
		{4, "host_to_device", "all_reduce 431"},
	} {
		to := targetOf(node.PlatformFigures(&list[at]))
		to.gpus = c.gpus
		text := strings.ReplaceAll(to.active().render("*"), "\n# ", " ")
		if !strings.Contains(text, c.has) || strings.Contains(text, c.hasNo) {
			t.Errorf("%d GPUs: want %q, not %q\n%s", c.gpus, c.has, c.hasNo, text)
		}
	}
}

// With --platform genconf writes the number of GPUs of the standard board. Nodes of the other platforms
// have any number, and their line has none.
func TestPlatformCount(t *testing.T) {
	t.Parallel()
	list, err := conf.ShippedPlatforms()
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		want := "check_gpu_count"
		switch name := list[i].Name; {
		case strings.HasPrefix(name, "HGX "):
			want = "check_gpu_count 8"
		case strings.HasPrefix(name, "GB"): // a tray
			want = "check_gpu_count 4"
		}
		to := targetOf(node.PlatformFigures(&list[i]))
		all := lines(to.expect())
		if !slices.Contains(all, want) {
			t.Errorf("%s: want %s in %q", list[i].Name, want, all)
		}
		if !slices.Contains(all, "#check_net_route") { // compute nodes often have no default route
			t.Errorf("%s: want check_net_route as a comment", list[i].Name)
		}
		services := slices.DeleteFunc(all, func(l string) bool { return !strings.HasPrefix(l, "check_ps_service") })
		if !slices.Equal(services, []string{"check_ps_service slurmd"}) {
			t.Errorf("%s: %q, and not all of its nodes run those", list[i].Name, services)
		}
		if all := lines(to.active()); !slices.Contains(all, "check_nccl all_reduce") {
			t.Errorf("%s: no check_nccl in %q", list[i].Name, all)
		}
	}
}
