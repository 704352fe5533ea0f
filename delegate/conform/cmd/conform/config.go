package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// object returns the configuration of the plugin, as an object. Of a network
// configuration list it is the member of the plugin's type or, for an IPAM plugin, the
// member that names it, with the name of the list.
func (o *options) object() (json.RawMessage, error) {
	typ := o.typ()
	if o.conf == "" {
		return json.Marshal(map[string]string{"type": typ})
	}
	text, err := os.ReadFile(o.conf)
	if err != nil {
		return nil, err
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil || object == nil {
		return nil, fmt.Errorf("%s is not a JSON object: %v", o.conf, err) //nolint:errorlint // may be nil
	}
	if object["plugins"] == nil || object["type"] != nil {
		return text, nil
	}
	var plugins []map[string]json.RawMessage
	if err := json.Unmarshal(object["plugins"], &plugins); err != nil {
		return nil, fmt.Errorf("%s: plugins: %w", o.conf, err)
	}
	is := func(plugin map[string]json.RawMessage) bool { return word(plugin["type"]) == typ }
	names := func(plugin map[string]json.RawMessage) bool {
		var ipam map[string]json.RawMessage
		return json.Unmarshal(plugin["ipam"], &ipam) == nil && word(ipam["type"]) == typ
	}
	i := slices.IndexFunc(plugins, is)
	if i < 0 {
		i = slices.IndexFunc(plugins, names)
	}
	if i < 0 {
		return nil, fmt.Errorf("%s is a network configuration list without a plugin of type %q", o.conf, typ)
	}
	if name, ok := object["name"]; ok {
		plugins[i]["name"] = name
	}
	return json.Marshal(plugins[i])
}

// word returns a JSON string, or "".
func word(text json.RawMessage) (s string) {
	if json.Unmarshal(text, &s) != nil {
		return ""
	}
	return s
}

// A scanner finds what a configuration needs: the types of the plugins that it
// delegates to, and interfaces of the host.
type scanner struct {
	self      string   // the plugin's type
	dirs      []string // in which plugins are looked for
	delegates []string // sorted, each once
	links     []string
}

// scan looks through a configuration, but not into that of a delegate.
func scan(text json.RawMessage, self string, dirs []string) *scanner {
	s := &scanner{self: self, dirs: dirs}
	var object map[string]any
	if json.Unmarshal(text, &object) == nil {
		delete(object, "type")
		for _, key := range []string{"prevResult", "runtimeConfig", "args"} {
			delete(object, key)
		}
		s.look("", object)
	}
	slices.Sort(s.delegates)
	s.delegates = slices.Compact(s.delegates)
	return s
}

// look looks through the value v of a key.
func (s *scanner) look(key string, v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if link, ok := e.(map[string]any); ok && key == "links" {
				s.link(link["name"])
			}
			s.look(key, e)
		}
	case map[string]any:
		if typ, ok := v["type"].(string); ok && s.isDelegate(key, typ) {
			s.delegates = append(s.delegates, typ)
			return
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			s.look(key, v[key])
		}
	case string:
		if slices.Contains([]string{"master", "device", "link", "parent"}, key) {
			s.link(v)
		}
	}
}

// isDelegate reports whether an object at key, with a type, configures a delegate.
func (s *scanner) isDelegate(key, typ string) bool {
	if typ == "" || typ == s.self || typ != filepath.Base(typ) || strings.Trim(typ, ".") == "" {
		return false
	}
	return slices.Contains([]string{"ipam", "delegate", "delegates", "plugins"}, key) ||
		slices.ContainsFunc(s.dirs, func(dir string) bool {
			info, err := os.Stat(filepath.Join(dir, typ))
			return dir != "" && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
		})
}

// link notes an interface, if v is the name of one.
func (s *scanner) link(v any) {
	if name, ok := v.(string); ok && name != "lo" && isLink(name) {
		s.links = union(s.links, []string{name})
	}
}

// isLink reports whether an interface can have this name.
func isLink(name string) bool {
	return regexp.MustCompile(`^[^\s/:%{}]{1,15}$`).MatchString(name) && strings.Trim(name, ".") != ""
}

// union returns the members of a and b, each once.
func union(a, b []string) (all []string) {
	for _, s := range slices.Concat(a, b) {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// results returns the fakes that -fake describes.
func (o *options) results() (map[string]delegatetest.Fake, error) {
	fakes := make(map[string]delegatetest.Fake)
	for typ, file := range o.fakes {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		result, err := create.CreateFromBytes(text)
		if err == nil && isConfiguration(text) {
			err = errors.New("it is a configuration")
		}
		if err != nil {
			return nil, fmt.Errorf("%s is not a CNI result: %w", file, err)
		}
		fakes[typ] = delegatetest.Result(result)
	}
	return fakes, nil
}

// isConfiguration reports whether a JSON object configures a plugin or a list of plugins.
func isConfiguration(text []byte) bool {
	var object struct{ Type, Plugins json.RawMessage }
	return json.Unmarshal(text, &object) == nil && (object.Type != nil || object.Plugins != nil)
}

// copyFiles copies the files of -files to dir, with {dir} replaced in them.
func (o *options) copyFiles(dir string) error {
	if o.files == "" {
		return nil
	}
	return filepath.WalkDir(o.files, func(path string, e fs.DirEntry, err error) error {
		name, relErr := filepath.Rel(o.files, path)
		if err = errors.Join(err, relErr); err != nil {
			return err
		}
		to := filepath.Join(dir, name)
		if e.IsDir() {
			return os.MkdirAll(to, 0o700)
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, []byte(expand(string(text), dir)), info.Mode().Perm())
	})
}

// expand replaces {dir} in text.
func expand(text, dir string) string { return strings.ReplaceAll(text, "{dir}", dir) }
