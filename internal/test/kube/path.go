package kubetest

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
)

// A path describes a request in the words of a role.
type path struct {
	Verb      string // get, list, watch, create, update, patch, delete
	Group     string // with the version; empty: the path is not that of a resource
	Resource  string // with the subresource after a slash
	Namespace string // empty: all namespaces, or none
	Name      string // empty for list, watch and create
}

// parsePath describes a request with this method and URL.
func parsePath(method string, u *url.URL) path {
	verbs := map[string]string{"GET": "get", "POST": "create", "PUT": "update"}
	r := path{Verb: cmp.Or(verbs[method], strings.ToLower(method))}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	prefix := map[string]int{"api": 2, "apis": 3}[parts[0]]
	if prefix == 0 || len(parts) <= prefix {
		return r
	}
	r.Group, parts = strings.Join(parts[1:prefix], "/"), parts[prefix:]
	if len(parts) > 2 && parts[0] == "namespaces" {
		r.Namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 1 {
		r.Name = parts[1]
		parts = slices.Delete(parts, 1, 2)
	}
	r.Resource = strings.Join(parts, "/")
	switch {
	case r.Verb != "get" || r.Name != "":
	case u.Query().Has("watch"):
		r.Verb = "watch"
	default:
		r.Verb = "list"
	}
	return r
}
