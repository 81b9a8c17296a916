"""Where batches come from: the one seam between the collector and whoever collects.

A transport moves batches and weights and knows who is there (`transport.Transport`). What is done with them
(gathering, versions, staleness, the end) is written once, above it, in `rollfleet.collector`, which nothing here may
import.
"""
