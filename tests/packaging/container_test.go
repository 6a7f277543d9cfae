package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// pods are the values for Slinky's chart, as far as this test looks at them.
type pods struct {
	Nodesets map[string]struct {
		Slurmd struct {
			SecurityContext struct{ Privileged bool } `yaml:"securityContext"`
			VolumeMounts    []struct {
				Name      string
				MountPath string `yaml:"mountPath"`
				SubPath   string `yaml:"subPath"`
			} `yaml:"volumeMounts"`
		}
		PodSpec struct {
			HostPID bool `yaml:"hostPID"`
			Volumes []volume
		} `yaml:"podSpec"`
	}
	ExtraObjects []struct {
		Kind     string
		Metadata struct{ Name string }
		Data     map[string]string
	} `yaml:"extraObjects"`
}

type volume struct {
	Name      string
	ConfigMap struct{ Name string }       `yaml:"configMap"`
	HostPath  struct{ Path, Type string } `yaml:"hostPath"`
}

// The values for Slinky's chart mount the paths of the node at the same paths, and an nhc.conf from
// their own ConfigMap. The chart itself cannot be had here.
func TestContainerValues(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "conf/container/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var v pods
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	set, ok := v.Nodesets["gpu"]
	if !ok || !set.Slurmd.SecurityContext.Privileged || !set.PodSpec.HostPID {
		t.Errorf("the pod has not the privileges of slurmd on a node: %+v", v)
	}
	var at []string
	for _, m := range set.Slurmd.VolumeMounts {
		at = append(at, m.MountPath)
		i := slices.IndexFunc(set.PodSpec.Volumes, func(v volume) bool { return v.Name == m.Name })
		if i < 0 {
			t.Errorf("%s has no volume", m.Name)
			continue
		}
		volume := set.PodSpec.Volumes[i]
		if volume.ConfigMap.Name != "" && (len(v.ExtraObjects) != 1 || v.ExtraObjects[0].Metadata.Name != volume.ConfigMap.Name || v.ExtraObjects[0].Data[m.SubPath] == "") {
			t.Errorf("%s: no ConfigMap %s with %s", m.Name, volume.ConfigMap.Name, m.SubPath)
		}
		if path := volume.HostPath.Path; path != "" && path != m.MountPath {
			t.Errorf("%s of the node is at %s", path, m.MountPath)
		}
	}
	slices.Sort(at)
	if diff := cmp.Diff([]string{"/dev/kmsg", "/etc/nhc/nhc.conf", "/run/nhc-gpu", "/var/lib/nhc-gpu"}, at); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

// The steps of the Containerfile work on the distribution of slurmd's image. No registry can be
// reached here, so the image itself is not built.
func TestContainerfile(t *testing.T) {
	tier.All(t)
	t.Parallel()
	if _, err := exec.LookPath("yamllint"); err == nil {
		run(t, exec.Command("yamllint", "-s", "-d", "{extends: default, rules: {line-length: {max: 120}}}", filepath.Join(root, "conf/container/values.yaml")))
	}
	text, err := os.ReadFile(filepath.Join(root, "conf/container/Containerfile"))
	if err != nil {
		t.Fatal(err)
	}
	k := makePackages(t)
	s := newSystem(t, "noble", false)
	steps := 0
	for line := range strings.Lines(string(text)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "", "#", "ARG", "USER":
		case "FROM":
			if rest != "${SLURMD}" {
				t.Errorf("FROM %s", rest)
			}
		case "COPY":
			from, to, _ := strings.Cut(rest, " ")
			pkg := s.share([]string{k.deb(t, k.dir, program)})[0]
			if ok, err := filepath.Match(from, filepath.Base(pkg)); !ok || err != nil {
				t.Errorf("COPY %s does not match %s", from, pkg)
			}
			s.must("cp " + pkg + " " + to)
			steps++
		case "RUN":
			s.must(rest)
			steps++
		default:
			t.Errorf("an unknown step: %s", line)
		}
	}
	if got := s.must("nhc-gpu version"); steps != 2 || !strings.HasPrefix(got, "nhc-gpu "+newVersion) {
		t.Errorf("after %d steps version prints %q", steps, got)
	}
}
