"""``topoccl probe``: what lies between hosts, found out by measuring.

``rounds`` says who talks with whom, ``explore`` which measurement comes next, ``infer`` what the measurements mean; these are pure.
``runner`` does the measuring over a transport.
"""
