package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Manifests are a Kustomize base and the components in its directories.
type manifests struct {
	files      filesys.FileSystem // has the base in /base
	components []string           // directories, in order
}

// load reads the manifests in a directory.
func load(dir string) (*manifests, error) {
	m := &manifests{files: filesys.MakeFsInMemory()}
	base := os.DirFS(dir)
	return m, fs.WalkDir(base, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(base, name)
		if err != nil {
			return err
		}
		if path.Base(name) == "kustomization.yaml" && bytes.Contains(data, []byte("\nkind: Component\n")) {
			m.components = append(m.components, path.Dir(name))
		}
		return m.files.WriteFile("/base/"+name, data)
	})
}

// image and config match what a release has in its values.
var (
	image  = regexp.MustCompile(`\bimage: .+`)
	config = regexp.MustCompile(`(?s)\bdaemon-config.json: .+?\n(\S)`)
)

// build returns the text of the objects of the base with components, by kind and name. Namespace,
// images and configuration are the release's. As with Kustomize, the ConfigMap has another name
// for each content.
func (m *manifests) build(components ...string) (map[string]string, error) {
	k := []byte("namespace: '{{ .Release.Namespace }}'\nresources: [../base]\ncomponents:\n")
	for _, c := range components {
		k = fmt.Appendf(k, "  - ../base/%s\n", c)
	}
	if err := m.files.WriteFile("/built/kustomization.yaml", k); err != nil {
		return nil, err
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(m.files, "/built")
	if err != nil {
		return nil, fmt.Errorf("components %q: %w", components, err)
	}
	objects, hash := make(map[string]string), ""
	for _, r := range built.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			return nil, err
		}
		name := r.GetName()
		if r.GetKind() == "ConfigMap" {
			hash, name = name, "multinetd"
			text = config.ReplaceAll(text, []byte("daemon-config.json: {{ toPrettyJson .Values.config | quote }}\n$1"))
		}
		objects[strings.ToLower(r.GetKind())+"-"+name] = string(image.ReplaceAll(text, []byte("image: {{ .Values.image | quote }}")))
	}
	for name, text := range objects {
		objects[name] = strings.ReplaceAll(text, hash, "multinetd-{{ toJson .Values.config | sha256sum | trunc 10 }}")
	}
	return objects, nil
}

// templates returns the text of the templates by the names of their files.
func (m *manifests) templates() (map[string]string, error) {
	base, err := m.build()
	if err != nil {
		return nil, err
	}
	names, templates := maps.Clone(base), make(map[string]string)
	with := make(map[string]map[string]string)
	for _, c := range m.components {
		if with[c], err = m.build(c); err != nil {
			return nil, err
		}
		maps.Copy(names, with[c])
	}
	for name := range names {
		lines := strings.SplitAfter(base[name], "\n")
		shown, inserted := slices.Clone(lines), make([]string, len(lines)) // inserted before a line
		for _, c := range m.components {
			used, changed := fmt.Sprintf("has %q .Values.components", c), strings.SplitAfter(with[c][name], "\n")
			for _, op := range difflib.NewMatcherWithJunk(lines, changed, false, nil).GetOpCodes() {
				if op.Tag == 'e' { // equal, as the last line always is
					continue
				}
				if op.J1 < op.J2 {
					inserted[op.I1] += when(used, strings.Join(changed[op.J1:op.J2], ""))
				}
				for i := op.I1; i < op.I2; i++ {
					shown[i] = when("not ("+used+")", shown[i])
				}
			}
		}
		var text strings.Builder
		for i := range lines {
			text.WriteString(inserted[i] + shown[i])
		}
		templates["templates/"+name+".yaml"] = text.String()
	}
	return templates, nil
}

// when makes lines of a template depend on a condition.
func when(condition, lines string) string {
	return "{{- if " + condition + " }}\n" + lines + "{{- end }}\n"
}
