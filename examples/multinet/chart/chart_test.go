package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	deploy = "../deploy"
	tagged = "registry.example.com/multinetd:v1.2.3-rc.1"
)

// platforms are the components of which a cluster has one at most.
var platforms = []string{"k3s", "microk8s", "openshift"}

// TestHelmGivesWhatKustomizeGives compares the objects of helm template with those of kustomize
// build, for the base, each component, each two of them, and all of them on each platform.
func TestHelmGivesWhatKustomizeGives(t *testing.T) {
	t.Parallel()
	chart := newChart(t)
	m, err := load(deploy)
	if err != nil {
		t.Fatal(err)
	}
	var others []string
	for _, c := range m.components {
		if !slices.Contains(platforms, c) {
			others = append(others, c)
		}
	}
	if len(others) < 6 || len(others)+len(platforms) != len(m.components) {
		t.Fatalf("components %q", m.components)
	}
	sets := [][]string{{}, others}
	for i, a := range m.components {
		sets = append(sets, []string{a})
		for _, b := range m.components[i+1:] {
			if !slices.Contains(platforms, a) || !slices.Contains(platforms, b) {
				sets = append(sets, []string{a, b}, []string{b, a})
			}
		}
	}
	for _, p := range platforms {
		sets = append(sets, append([]string{p}, others...), append(slices.Clone(others), p))
	}
	for _, components := range sets {
		t.Run(strings.Join(components, "+"), func(t *testing.T) {
			t.Parallel()
			want := parse(t, kustomize(t, slices.Sorted(slices.Values(components))))
			got := parse(t, chart.render(t, fmt.Sprintf("components: [%s]", strings.Join(components, ", "))))
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("kustomize build (-), helm template (+):\n%s", diff)
			}
		})
	}
}

// TestValuesOfTheChart changes the configuration, which is an object to Helm.
func TestValuesOfTheChart(t *testing.T) {
	t.Parallel()
	chart := newChart(t)
	names := map[string]bool{}
	for values, change := range map[string]map[string]any{
		"{}":                                {},
		"config: {}":                        {},
		"config: {nadDir: null}":            {"nadDir": nil},
		`config: {reconcile: true}`:         {"reconcile": true},
		`config: {dra: {driver: "d.io"}}`:   {"dra": map[string]any{"driver": "d.io"}},
		`config: {name: "a\"{{b}}<&>\nc:"}`: {"name": "a\"{{b}}<&>\nc:"},
		`config: {statusRate: 5000000}`:     {"statusRate": 5e6},
	} {
		var want map[string]any
		text, err := os.ReadFile(deploy + "/daemon/daemon-config.json")
		if err == nil {
			err = json.Unmarshal(text, &want)
		}
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(want, change)
		maps.DeleteFunc(want, func(_ string, v any) bool { return v == nil })
		rendered := chart.render(t, values)
		if diff := gocmp.Diff(any(want), parse(t, rendered)["ConfigMap/multinetd"]["data"]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", values, diff)
		}
		found := hashed.FindAllString(rendered, -1)
		if len(found) != 2 || found[0] != found[1] {
			t.Errorf("%s: the names of the ConfigMap are %q", values, found)
			continue
		}
		names[found[0]] = true
	}
	if odd := chart.render(t, `image: "a #b: \"c\""`); strings.Count(odd, `image: "a #b: \"c\""`+"\n") != strings.Count(odd, "image: ") {
		t.Errorf("an image is not quoted:\n%s", odd)
	}
	if len(names) != 6 { // two have the same content
		t.Errorf("the names of ConfigMaps are %v", names)
	}
}

// TestWrongValuesAreRefused says that Helm refuses values that would have no effect, and two
// platforms.
func TestWrongValuesAreRefused(t *testing.T) {
	t.Parallel()
	chart := newChart(t)
	for values, want := range map[string]string{
		"components: [devises]":         "value must be one of",
		"components: [k3s, microk8s]":   "contains",
		"components: [pods, pods]":      "items at 0 and 1 are equal",
		"components: {pods: true}":      "got object, want array",
		"config: '{}'":                  "got string, want object",
		"image: {tag: v1}":              "got object, want string",
		"nodeSelector: {}":              "additional properties 'nodeSelector' not allowed",
		"components: [openshift, k3s]":  "contains",
		"components: [dra, k3s, Pods ]": "value must be one of",
	} {
		if text, err := chart.template(values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\n%s", values, err, text)
		}
	}
}

// TestChartHasTheVersionOfItsImage also checks that the chart has the definition of
// NetworkAttachmentDefinitions where Helm never deletes it.
func TestChartHasTheVersionOfItsImage(t *testing.T) {
	t.Parallel()
	c, err := loader.LoadDir(newChart(t).dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	crd, err := os.ReadFile(deploy + "/crd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := []any{c.Values["image"], c.Metadata.Version, c.Metadata.AppVersion, string(c.CRDObjects()[0].File.Data)}
	if diff := gocmp.Diff([]any{tagged, "1.2.3-rc.1", "v1.2.3-rc.1", string(crd)}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Generated is a chart in a directory.
type generated struct{ dir string }

func newChart(t *testing.T) generated {
	t.Helper()
	c := generated{t.TempDir()}
	if err := generate(deploy, tagged, c.dir); err != nil {
		t.Fatal(err)
	}
	return c
}

// template returns the text of helm template, with values as a file of values has them.
func (c generated) template(values string) (string, error) {
	loaded, err := loader.LoadDir(c.dir)
	if err != nil {
		return "", err
	}
	given, err := common.ReadValues([]byte(values))
	if err != nil {
		return "", err
	}
	release := common.ReleaseOptions{Name: "any", Namespace: "networks", IsInstall: true}
	all, err := util.ToRenderValues(loaded, given, release, common.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(loaded, all)
	return strings.Join(slices.Collect(maps.Values(files)), "\n---\n"), err
}

func (c generated) render(t *testing.T, values string) string {
	t.Helper()
	text, err := c.template(values)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// kustomize returns the text of kustomize build, with components as a user has them.
func kustomize(t *testing.T, components []string) string {
	t.Helper()
	dir := t.TempDir()
	abs, err := filepath.Abs(deploy)
	if err == nil {
		abs, err = filepath.Rel(dir, abs)
	}
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("resources: [%s]\nnamespace: networks\nimages: [{name: multinetd, newName: registry.example.com/multinetd, newTag: v1.2.3-rc.1}]\ncomponents:\n", abs)
	for _, c := range components {
		text += "  - " + abs + "/" + c + "\n"
	}
	if err := os.WriteFile(dir+"/kustomization.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	out, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// hashed matches names of the ConfigMap.
var hashed = regexp.MustCompile(`\bname: multinetd-[a-z0-9]{10}\b`)

// parse returns the objects in a text by kind and name, without differences that mean nothing: the
// hash in the name of the ConfigMap, the form of its JSON, and the order of volumes and mounts.
func parse(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	objects := map[string]map[string]any{}
	for part := range strings.SplitSeq(hashed.ReplaceAllString(text, "name: multinetd"), "\n---\n") {
		var object map[string]any
		if err := yaml.UnmarshalStrict([]byte(part), &object); err != nil {
			t.Fatalf("%v:\n%s", err, part)
		}
		if object == nil {
			continue
		}
		if data, ok := object["data"].(map[string]any); ok {
			var config any
			if err := json.Unmarshal([]byte(data["daemon-config.json"].(string)), &config); err != nil || len(data) != 1 {
				t.Fatalf("data %v: %v", data, err)
			}
			object["data"] = config
		}
		sorted(object)
		name := fmt.Sprintf("%s/%s", object["kind"], object["metadata"].(map[string]any)["name"])
		if objects[name] != nil {
			t.Fatalf("two objects are %s", name)
		}
		objects[name] = object
	}
	return objects
}

// sorted sorts the volumes and mounts of an object.
func sorted(value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			if list, ok := v.([]any); ok && (key == "volumes" || key == "volumeMounts") {
				slices.SortFunc(list, func(a, b any) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			}
			sorted(v)
		}
	case []any:
		for _, v := range value {
			sorted(v)
		}
	}
}
