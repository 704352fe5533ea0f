package kubetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// patch returns what a patch makes of an object.
func patch(old *object, mediaType string, data []byte) (*object, *failure) {
	text := old.text()
	switch mediaType {
	case "application/merge-patch+json":
		if !json.Valid(data) {
			return nil, failf(http.StatusBadRequest, "the patch is not JSON")
		}
		text = merge(text, data)
	case "application/json-patch+json":
		var operations []operation
		if err := json.Unmarshal(data, &operations); err != nil {
			return nil, failf(http.StatusBadRequest, "%v", err)
		}
		root := tree(text)
		for _, o := range operations {
			path := strings.Split(strings.TrimPrefix(o.Path, "/"), "/")
			if _, err := o.apply(root, path); err != nil {
				return nil, failf(http.StatusUnprocessableEntity, "%s %s: %v", o.Op, o.Path, err)
			}
		}
		text = mustMarshal(root)
	default:
		return nil, unsupported(mediaType)
	}
	o := new(object)
	if err := json.Unmarshal(text, o); err != nil {
		return nil, invalid(wrong("patch", err.Error()))
	}
	return o, nil
}

// merge applies a merge patch (RFC 7386).
func merge(old, patch json.RawMessage) json.RawMessage {
	var from, to map[string]json.RawMessage
	if json.Unmarshal(patch, &from) != nil || from == nil {
		return patch
	}
	if json.Unmarshal(old, &to) != nil || to == nil {
		to = map[string]json.RawMessage{}
	}
	for key, value := range from {
		if string(value) == "null" {
			delete(to, key)
		} else {
			to[key] = merge(to[key], value)
		}
	}
	return mustMarshal(to)
}

// An operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op, Path string
	Value    json.RawMessage
}

// apply applies the operation to the value at path in v, and returns what v becomes: nil if it
// is removed.
func (o operation) apply(v any, path []string) (any, error) { //nolint:ireturn // any JSON value
	if len(path) == 0 {
		switch {
		case o.Op == "remove":
			return nil, nil //nolint:nilnil // removed
		case o.Op != "test":
			return nil, errors.ErrUnsupported
		case !reflect.DeepEqual(v, tree(o.Value)):
			return nil, fmt.Errorf("the value is %v", v)
		}
		return v, nil
	}
	switch v := v.(type) {
	case map[string]any:
		if child, ok := v[path[0]]; ok {
			child, err := o.apply(child, path[1:])
			v[path[0]] = child
			if child == nil {
				delete(v, path[0])
			}
			return v, err
		}
	case []any:
		if i, err := strconv.Atoi(path[0]); err == nil && 0 <= i && i < len(v) {
			v[i], err = o.apply(v[i], path[1:])
			if v[i] == nil {
				v = slices.Delete(v, i, i+1)
			}
			return v, err
		}
	}
	return nil, errors.New("there is no such value")
}

// admit checks o, which is to replace old, and gives it what the client cannot change.
func admit(c call, o, old *object) *failure {
	if o.meta.ResourceVersion != "" && o.meta.ResourceVersion != old.meta.ResourceVersion {
		return failf(http.StatusConflict, "the object has been modified; please apply your changes to the latest version and try again")
	}
	var causes []cause
	if o.meta.UID != "" && o.meta.UID != old.meta.UID {
		causes = append(causes, wrong("metadata.uid", "field is immutable"))
	}
	size := 0
	for key, value := range o.meta.Annotations {
		size += len(key) + len(value)
	}
	if size > 256<<10 {
		causes = append(causes, wrong("metadata.annotations", "may not be more than 262144 bytes"))
	}
	kept := "status"
	if c.status {
		kept = "spec"
	}
	delete(o.other, kept)
	if value, ok := old.other[kept]; ok {
		o.other[kept] = value
	}
	m := &o.meta
	m.Name, m.Namespace, m.UID, m.ResourceVersion = old.meta.Name, old.meta.Namespace, old.meta.UID, old.meta.ResourceVersion
	m.CreationTimestamp, m.DeletionTimestamp = old.meta.CreationTimestamp, old.meta.DeletionTimestamp
	o.other["kind"], o.other["apiVersion"] = old.other["kind"], old.other["apiVersion"]
	if len(causes) > 0 {
		return invalid(causes...)
	}
	return nil
}
